"""Two saved profiles side by side, per stage and per bucket; unlike ones are refused.

Figures are per image where images were counted, so that batches of different sizes compare; the
account of a server is per request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.result import find_differences
from offpath.profiling.experiments.server_figures import list_account
from offpath.profiling.in_process.profile_result import HandlerProfile, ProfileResult
from offpath.profiling.in_process.profile_summary import (
    OTHER,
    TOTAL,
    count_images,
    summarise_buckets,
    summarise_stages,
)

# What must be alike. Versions may differ: comparing before and after an upgrade is what people do.
HOST_KEYS = ("cpu", "cores", "memory_gib", "gpu")
SETTING_KEYS = ("model", "batch_size", "clients", "threads", "device", "s3_latency_ms")
SHOWN_DIFFERENCES = 6


@dataclass(frozen=True)
class ComparedRow:
    """One stage, bucket or part of two results; None where one of them lacks it."""

    name: str
    first_ms: float | None
    second_ms: float | None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if self.first_ms is None or self.second_ms is None or self.first_ms <= 0:
            return None
        return self.second_ms / self.first_ms


@dataclass(frozen=True)
class Comparison:
    """One pair of handlers.

    Attributes:
        tables: what is compared ("stages", "buckets", "account") -> its rows, `total` last.
    """

    first: str
    second: str
    tables: Mapping[str, Sequence[ComparedRow]]


def compare_profiles(
    first: ProfileResult, second: ProfileResult, force: bool = False
) -> list[Comparison]:
    """Pairs the handlers of two results and compares each pair.

    Raises:
        ExpectedError: the results are not comparable and `force` is not set, or no handlers pair.
    """
    pairs = pair_handlers(first, second)
    differences = find_unlike(first, second, pairs)
    if differences and not force:
        shown = "; ".join(differences[:SHOWN_DIFFERENCES])
        raise ExpectedError(
            f"these profiles are not comparable: {shown}; --force compares them all the same"
        )
    return [
        Comparison(one.name, other.name, compare_handlers(one, other))
        for one, other in pairs
    ]


def pair_handlers(
    first: ProfileResult, second: ProfileResult
) -> list[tuple[HandlerProfile, HandlerProfile]]:
    """Handlers of the same name; where each result has one only, those two."""
    others = {profile.name: profile for profile in second.handlers}
    pairs = [(p, others[p.name]) for p in first.handlers if p.name in others]
    if not pairs and len(first.handlers) == len(second.handlers) == 1:
        pairs = [(first.handlers[0], second.handlers[0])]
    if not pairs:
        names = [
            ", ".join(p.name for p in r.handlers) or "none" for r in (first, second)
        ]
        raise ExpectedError(
            f"no handlers to compare: the first result has {names[0]}, the second {names[1]};"
            " expected a name that is in both, or one handler each"
        )
    return pairs


def find_unlike(
    first: ProfileResult,
    second: ProfileResult,
    pairs: Iterable[tuple[HandlerProfile, HandlerProfile]],
) -> list[str]:
    """What forbids a comparison, as "where: one, other"."""
    differences = [
        *find_differences(first.kind, second.kind, "kind"),
        *find_differences(
            identify_images(first), identify_images(second), "workload.identity"
        ),
        *find_differences(
            pick(first.host, HOST_KEYS), pick(second.host, HOST_KEYS), "host"
        ),
        *find_differences(
            pick(first.settings, SETTING_KEYS),
            pick(second.settings, SETTING_KEYS),
            "settings",
        ),
    ]
    for one, other in pairs:
        differences += find_differences(
            one.settings.get("batch_size"),
            other.settings.get("batch_size"),
            f"{one.name}.batch_size",
        )
    return differences


def find_notes(first: ProfileResult, second: ProfileResult) -> list[str]:
    """What differs and may explain the figures: versions and the other settings."""
    return [
        *find_differences(
            without(first.host, HOST_KEYS), without(second.host, HOST_KEYS), "host"
        ),
        *find_differences(
            without(first.settings, SETTING_KEYS),
            without(second.settings, SETTING_KEYS),
            "settings",
        ),
    ]


def identify_images(result: ProfileResult) -> object:
    """The photographs' checksum, or what else the result says of them."""
    return result.workload.get("identity", result.workload)


def pick(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The named values that are there."""
    return {key: values[key] for key in keys if key in values}


def without(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """All values but the named ones."""
    return {key: value for key, value in values.items() if key not in keys}


def compare_handlers(
    first: HandlerProfile, second: HandlerProfile
) -> dict[str, list[ComparedRow]]:
    """Every table that both have."""
    readers: dict[str, Callable[[HandlerProfile], dict[str, float]]] = {
        "account": read_account_ms,
        "stages": read_stages_ms,
        "buckets": read_buckets_ms,
    }
    tables = {}
    for name, read in readers.items():
        one, other = read(first), read(second)
        if one and other:
            tables[name] = merge_rows(one, other)
    return tables


def read_stages_ms(profile: HandlerProfile) -> dict[str, float]:
    """Mean milliseconds an image by stage, `total` last."""
    return {
        row.stage: 1e3 * row.image_mean_s for row in summarise_stages(profile.batches)
    }


def read_buckets_ms(profile: HandlerProfile) -> dict[str, float]:
    """Own milliseconds an image by bucket (in all, where images were not counted), `total` last."""
    images = count_images(profile.batches) or 1
    rows = summarise_buckets(profile.functions)
    values = {row.bucket: 1e3 * row.own_s / images for row in rows}
    return {**values, TOTAL: sum(values.values())} if values else {}


def read_account_ms(profile: HandlerProfile) -> dict[str, float]:
    """Milliseconds of a client's mean latency by part, `total` last."""
    values = {part: ms for part, _, ms, _ in list_account(profile.server)}
    return {**values, TOTAL: profile.server["mean_ms"]} if values else {}


def merge_rows(
    first: Mapping[str, float], second: Mapping[str, float]
) -> list[ComparedRow]:
    """Rows of both in the first's order, then what only the second has, then what is left over."""
    last = (OTHER, TOTAL)
    names = [name for name in dict.fromkeys([*first, *second]) if name not in last]
    names += [name for name in last if name in first or name in second]
    return [ComparedRow(name, first.get(name), second.get(name)) for name in names]
