"""Canaries and shadows: a share of a model's requests, or copies of them, go to another version.

Only requests that name no version are split. A canary answers its share of them. A shadow gets
copies of its share, and nobody waits for its answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from offpath.archive.mar_file import MarFile
from offpath.handler.errors import WrongOption

# The names that a path of nginx.conf accepts, and the share as nginx's split_clients takes it.
SPLIT = re.compile(
    r"([A-Za-z0-9._-]{1,128})=([A-Za-z0-9._-]{1,64}):([0-9]{1,3}(?:\.[0-9]{1,2})?)%"
)
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
# nginx hashes the key, so a client keeps the canary while its share grows.
CANARY = """\
split_clients "{model} {key}" $offpath_canary_{number} {{
    {share}% /{version};
    * "";
}}"""
SHADOW = """\
split_clients $request_id $offpath_copy_{number} {{
    {share}% /predictions/{model}/{version};
    * "";
}}"""
# A request is logged when its copy has ended. The header, which is empty and so never sent, makes
# nginx note the time when the answer begins.
NOTED_TIME = """\
map $request_time $offpath_took {
    default $request_time;
}
map $offpath_took $offpath_noted {
    default "";
}"""
BY_HEADER = """\
map $http_{name} $offpath_canary_key {{
    default $http_{name};
    "" $offpath_client;
}}"""


@dataclass(frozen=True)
class Split:
    """A share of one model's requests for another version of it; `share` is in percent."""

    model: str
    version: str
    share: str

    def __str__(self) -> str:
        return f"{self.model}={self.version}:{self.share}%"

    @property
    def worker_name(self) -> str:
        """The name of its workers in the server's log."""
        return f"{self.model}_{self.version}"


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
    return Split(*match.groups())


def check_splits(
    splits: Iterable[Split], archives: Iterable[tuple[str, MarFile]]
) -> None:
    """Checks that each split names a served version other than the one that it is split from.

    Args:
        splits: the canaries and shadows.
        archives: the served archives, each with the name that its model is served under.

    Raises:
        WrongOption: a model or version is not served, or answers these requests already.
    """
    served: dict[str, list[str]] = {}
    for name, archive in archives:
        served.setdefault(name, []).append(archive.model_version)
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


def keep_served(
    splits: Iterable[Split], archives: Iterable[tuple[str, MarFile]]
) -> tuple[Split, ...]:
    """Returns the splits whose version is served."""
    served = {(name, archive.model_version) for name, archive in archives}
    return tuple(split for split in splits if (split.model, split.version) in served)


def format_canaries(canaries: Sequence[Split], header: str | None) -> str:
    """Returns nginx's maps from a request to the version that ends its path.

    Args:
        canaries: the canaries.
        header: requests with the same value of it get the same version; those without it, and all
            of them if this is None, are told apart by the client's address.
    """
    if not canaries:
        return ""
    lines, key = [], "$offpath_client"
    if header is not None:
        lines.append(BY_HEADER.format(name=header.lower().replace("-", "_")))
        key = "$offpath_canary_key"
    for number, split in enumerate(canaries):
        lines.append(CANARY.format(**vars(split), key=key, number=number))
    paths = {
        f"^/[a-z]+/{re.escape(split.model)}$": f"$offpath_canary_{number}"
        for number, split in enumerate(canaries)
    }
    return "\n".join([*lines, _format_map("$uri", "$offpath_canary", paths)])


def format_shadows(shadows: Sequence[Split]) -> str:
    """Returns nginx's maps from a request to its copy's path, and from that to its upstream."""
    if not shadows:
        return ""
    lines, paths, upstreams = [NOTED_TIME], {}, {}
    for number, split in enumerate(shadows):
        lines.append(SHADOW.format(**vars(split), number=number))
        # Not the large bodies, because a copy keeps its request's body until it is answered.
        path = f"^(small|medium)? /predictions/{re.escape(split.model)}$"
        paths[path] = f"$offpath_copy_{number}"
        upstreams[f"^/predictions/{re.escape(split.model)}/"] = name_shadow(number)
    lines.append(_format_map('"$offpath_size $uri"', "$offpath_copy", paths))
    lines.append(_format_map("$offpath_copy", "$offpath_shadow", upstreams))
    return "\n".join(lines)


def name_shadow(number: int) -> str:
    """Returns the name of a shadow's upstream."""
    return f"shadow_{number}"


def _format_map(source: str, target: str, values: dict[str, str]) -> str:
    """Returns a map of nginx's from regular expressions to values; the default is empty."""
    lines = "\n".join(f'    "~{pattern}" {value};' for pattern, value in values.items())
    return f"map {source} {target} {{\n{lines}\n}}"
