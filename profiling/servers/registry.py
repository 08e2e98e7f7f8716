"""Servers under test by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offpath.errors import ExpectedError
from profiling.model_under_test import ModelUnderTest
from profiling.servers import ServerUnderTest
from profiling.servers.torchserve import make_offpath, make_stock, make_stock_fixed

# Name -> maker(model, cores).
SERVERS: dict[str, Callable[[ModelUnderTest, int], ServerUnderTest]] = {
    "offpath": make_offpath,
    "torchserve-stock": make_stock,
    "torchserve-fixed": make_stock_fixed,
}


def make_servers(
    names: Sequence[str], model: ModelUnderTest, cores: int
) -> list[ServerUnderTest]:
    """The named servers, in order.

    Raises:
        ExpectedError: an unknown or repeated name.
    """
    for name in names:
        if name not in SERVERS:
            raise ExpectedError(
                f"no server {name!r}: expected some of {', '.join(SERVERS)}"
            )
    if len(set(names)) != len(names) or not names:
        raise ExpectedError(
            f"servers {','.join(names)!r}: expected distinct names, at least one"
        )
    return [SERVERS[name](model, cores) for name in names]
