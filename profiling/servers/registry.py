"""Servers under test by name, and what each of them needs to be installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.servers import (
    bentoml,
    litserve,
    mms,
    mosec,
    ray_serve,
    tf_serving,
    torchserve,
    triton,
)

# Name -> maker(model, cores).
SERVERS: dict[str, Callable[[ModelUnderTest, int], ServerUnderTest]] = {
    "offpath": torchserve.make_offpath,
    "offpath-thin": torchserve.make_offpath_thin,
    "offpath-int8": torchserve.make_offpath_int8,
    "offpath-unforked": torchserve.make_offpath_unforked,
    "torchserve-naive": torchserve.make_naive,
    "torchserve-naive-s3": torchserve.make_naive_s3,
    "torchserve-stock": torchserve.make_stock,
    "torchserve-fixed": torchserve.make_stock_fixed,
    "triton": triton.make_triton,
    "triton-offpath-decode": triton.make_triton_offpath_decode,
    "triton-thin": triton.make_triton_thin,
    "bentoml": bentoml.make_bentoml,
    "ray-serve": ray_serve.make_ray_serve,
    "litserve": litserve.make_litserve,
    "mosec": mosec.make_mosec,
    "mms": mms.make_mms,
    "tf-serving": tf_serving.make_tf_serving,
}

# Name -> environment and pip's arguments, for `offpath bench setup`; the others need nothing.
ENVIRONMENTS: dict[str, tuple[str, Sequence[str]]] = {
    "triton": (triton.ENVIRONMENT, triton.REQUIREMENTS),
    "triton-offpath-decode": (triton.ENVIRONMENT, triton.REQUIREMENTS),
    "triton-thin": (triton.ENVIRONMENT, triton.REQUIREMENTS),
    "bentoml": (bentoml.ENVIRONMENT, bentoml.REQUIREMENTS),
    "ray-serve": (ray_serve.ENVIRONMENT, ray_serve.REQUIREMENTS),
    "litserve": (litserve.ENVIRONMENT, litserve.REQUIREMENTS),
    "mosec": (mosec.ENVIRONMENT, mosec.REQUIREMENTS),
    "mms": (mms.ENVIRONMENT, mms.REQUIREMENTS),
}


def make_servers(
    names: Sequence[str], model: ModelUnderTest, cores: int
) -> list[ServerUnderTest]:
    """The named servers, in order.

    Raises:
        ExpectedError: an unknown or repeated name.
    """
    check_names(names)
    if len(set(names)) != len(names) or not names:
        raise ExpectedError(
            f"servers {','.join(names)!r}: expected distinct names, at least one"
        )
    return [SERVERS[name](model, cores) for name in names]


def check_names(names: Sequence[str]) -> None:
    """Refuses a name that no server has."""
    for name in names:
        if name not in SERVERS:
            raise ExpectedError(
                f"no server {name!r}: expected some of {', '.join(SERVERS)}"
            )
