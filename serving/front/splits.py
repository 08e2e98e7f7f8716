"""Canaries and shadows: a share of a model's requests, or copies of them, go to another version.

Only requests that name no version are split. A canary answers its share of them. A shadow gets
copies of its share, and nobody waits for its answers. A canary that answers nothing is suspended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from offpath.errors import WrongOption
from offpath.serving.server.served_model import ServedModel

# The names that a path of nginx.conf accepts, and the share as nginx's split_clients takes it.
SPLIT = re.compile(r"([A-Za-z0-9._-]{1,128})=([A-Za-z0-9._-]{1,64}):([0-9]{1,3}(?:\.[0-9]{1,2})?)%")
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class Suspension(Enum):
    """The reason why a canary gets no requests; they go to the version it is split from."""

    NOT_READY = "no worker of it is READY"
    FAILS = "it has answered none of its last requests"


@dataclass(frozen=True)
class Split:
    """A share of one model's requests for another version of it.

    Attributes:
        model: name of the model.
        version: the other version.
        share: percent, as text.
        suspended: None if it gets its requests.
    """

    model: str
    version: str
    share: str
    suspended: Suspension | None = None

    def __str__(self) -> str:
        return f"{self.model}={self.version}:{self.share}%"


def parse_split(text: str) -> Split:
    """Reads MODEL=VERSION:SHARE%.

    Raises:
        WrongOption: the text has another form, or the share is not above 0 and at most 100.
    """
    match = SPLIT.fullmatch(text)
    if match is None or not 0 < float(match[3]) <= 100:
        raise WrongOption(
            f"{text!r} is not MODEL=VERSION:SHARE% with a share above 0 and at most 100, such as "
            "defects=2.0:5%"
        )
    return Split(match[1], match[2], match[3])


def check_splits(splits: Iterable[Split], models: Iterable[ServedModel]) -> None:
    """Checks that each split names a served version other than the one that it is split from.

    Raises:
        WrongOption: a model or version is not served, or answers these requests already.
    """
    served: dict[str, list[str]] = {}
    for model in models:
        served.setdefault(model.name, []).append(model.version)
    for split in splits:
        versions = served.get(split.model, [])
        if split.version not in versions:
            names = ", ".join(f"{m} {v}" for m in served for v in served[m])
            raise WrongOption(
                f"{split}: {split.model} {split.version} is not served; the models are {names}"
            )
        if split.version == versions[0]:
            raise WrongOption(
                f"{split}: {split.version} answers all these requests already, because its archive "
                "comes first; name the archive of the other version before it"
            )


def judge_canaries(
    canaries: Iterable[Split],
    ready: Collection[tuple[str, str]],
    only_fails: Callable[[Split], bool],
) -> tuple[Split, ...]:
    """Returns the canaries, each with the reason why it is to be suspended, if it is.

    A canary without a READY worker comes back with its next one. One that only fails would fail
    again, so it waits for a new command. `ready` has name and version of each model with a READY
    worker.
    """
    judged = []
    for canary in canaries:
        why = None if (canary.model, canary.version) in ready else Suspension.NOT_READY
        if canary.suspended is Suspension.FAILS or only_fails(canary):
            why = Suspension.FAILS
        judged.append(replace(canary, suspended=why))
    return tuple(judged)


def describe_change(before: Split, now: Split) -> str:
    """Returns what an operator has to know; empty if nothing has changed."""
    if before == now:
        return ""
    if now.suspended is None:
        return f"canary {now} gets requests again"
    cure = "until one is"
    if now.suspended is Suspension.FAILS:
        cure = f"until `offpath canary {now}` lets it try again"
    return f"canary {now} is suspended: {now.suspended.value}; it gets no requests {cure}"
