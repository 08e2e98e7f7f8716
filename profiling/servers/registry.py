"""Servers under test by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offpath.errors import WrongOption
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers.adapter import BATCH_SIZE, Adapter
from offpath.profiling.servers.bentoml import BentoML
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.exported import OffpathExportTriton, OffpathRay
from offpath.profiling.servers.litserve import LitServe
from offpath.profiling.servers.mms import Mms
from offpath.profiling.servers.mosec import Mosec, MosecOffpathDecode
from offpath.profiling.servers.overrides import apply_override, parse_override
from offpath.profiling.servers.ray_serve import RayServe
from offpath.profiling.servers.tf_serving import TfServing
from offpath.profiling.servers.torchserve import make_stock, make_stock_fixed, naive, ours
from offpath.profiling.servers.triton import Triton, TritonOffpathDecode

# Name -> maker(model, cores).
SERVERS: dict[str, Callable[[ModelUnderTest, int], Adapter]] = {
    "offpath": ours("offpath", has_door=True),
    "offpath-direct": ours("offpath-direct"),
    "offpath-granian": ours("offpath-granian", server="granian", has_door=True),
    "offpath-granian-direct": ours("offpath-granian-direct", server="granian"),
    "offpath-s3": ours("offpath-s3", has_store=True),
    "torchserve-naive": naive("torchserve-naive"),
    "torchserve-naive-s3": naive("torchserve-naive-s3", has_store=True),
    "torchserve-stock": make_stock,
    "torchserve-fixed": make_stock_fixed,
    "triton": Triton,
    "triton-offpath-decode": TritonOffpathDecode,
    "offpath-export-triton": OffpathExportTriton,
    "offpath-ray": OffpathRay,
    "bentoml": BentoML,
    "ray-serve": RayServe,
    "litserve": LitServe,
    "mosec": Mosec,
    "mosec-offpath-decode": MosecOffpathDecode,
    "mms": Mms,
    "tf-serving": TfServing,
}

# Name -> environment that `offpath bench setup` installs; the other servers need none.
ENVIRONMENTS: dict[str, Environment] = {
    name: environment
    for name, make in SERVERS.items()
    if (environment := getattr(make, "environment", None)) is not None
}


def make_servers(
    names: Sequence[str],
    model: ModelUnderTest,
    cores: int,
    variants: Sequence[str] = (),
    batch_size: int = BATCH_SIZE,
) -> list[Adapter]:
    """Makes the named servers in order, then variants of servers, see `overrides`.

    All have the same largest batch, except variants that set their own. Raises WrongOption for a
    name that is unknown or repeated.
    """
    check_names(names)
    made = [SERVERS[name](model, cores) for name in names]
    for server in made:
        server.batch_size = batch_size
    for text in variants:
        name, base, settings = parse_override(text)
        check_names([base])
        server = SERVERS[base](model, cores)
        server.batch_size = batch_size
        made.append(apply_override(server, name, settings))
    if len({server.name for server in made}) != len(made) or not made:
        given = ",".join(server.name for server in made)
        raise WrongOption(f"servers {given!r}: expected distinct names, at least one")
    return made


def check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in SERVERS:
            raise WrongOption(f"no server {name!r}: expected some of {', '.join(SERVERS)}")
