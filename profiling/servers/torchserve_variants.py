"""TorchServe's variants under test: with our archive, as it comes, as it comes with its traps
avoided."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

from offpath.profiling.load.call import NPY, Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers import archives
from offpath.profiling.servers.s3_store import (
    PREDICTION_LOG,
    PUT_LATENCY_MS,
    run_store,
    why_no_store,
)
from offpath.profiling.servers.torchserve import TorchServeUnderTest

INT8_PACKAGES = ("openvino", "nncf")


# Where the naive handler puts its predictions; nowhere without them.
NAIVE_VARIABLES = ("OFFPATH_NAIVE_BUCKET", "OFFPATH_NAIVE_ENDPOINT")


def make_offpath_direct(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """Our archive with the cpu preset, our config.properties, no front door."""
    config = archives.offpath_config(model, cores)
    return TorchServeUnderTest(
        "offpath-direct",
        lambda folder, asked: archives.build_offpath(model, asked, folder),
        config,
    )


def make_offpath_unforked(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The same server; each worker is a process that TorchServe starts from nothing."""
    return replace(
        make_offpath_direct(model, cores), name="offpath-unforked", fork_workers=False
    )


def make_offpath_thin(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The same server; the client has decoded and resized, and sends a uint8 npy."""
    return replace(
        make_offpath_direct(model, cores), name="offpath-thin", call=Call(NPY)
    )


def make_offpath_s3(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The same server, its prediction log shipped to an S3 server of the benchmark's own."""
    config = archives.offpath_config(model, cores, prediction_log=PREDICTION_LOG)
    offpath = replace(make_offpath_direct(model, cores), archive_settings=config)
    return with_store(offpath, "offpath-s3")


def with_store(server: TorchServeUnderTest, name: str) -> TorchServeUnderTest:
    """The server with an S3 server beside it."""
    return replace(
        server,
        name=name,
        env={},
        beside=run_store,
        beside_settings={"s3": "SeaweedFS on loopback", "put_ms": PUT_LATENCY_MS},
        needs=why_no_store,
    )


def make_offpath_int8(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """Our archive with an int8 graph for OpenVINO, calibrated on the packages' photographs."""
    config = archives.offpath_config(model, cores, engine="openvino", precision="int8")
    return replace(
        make_offpath_direct(model, cores),
        name="offpath-int8",
        archive_settings=config,
        needs=why_no_int8,
    )


def why_no_int8() -> str | None:
    """Why no int8 archive can be built here, with the cure; None when one can."""
    missing = [name for name in INT8_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"{' and '.join(missing)} not installed: pip install 'torchserve-offpath[int8]'"
    )


def make_naive(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The handler that everybody writes first (`baselines/naive_handler.py`), on the defaults.

    It puts each prediction into S3 where OFFPATH_NAIVE_BUCKET (and OFFPATH_NAIVE_ENDPOINT) say so.
    """
    store = {name: os.environ[name] for name in NAIVE_VARIABLES if name in os.environ}
    return TorchServeUnderTest(
        "torchserve-naive",
        lambda folder, _: archives.build_naive(model, folder),
        stock=True,
        # In the settings: runs with and without S3 are not alike.
        env=store,
    )


def make_naive_s3(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The same handler with an S3 server of the benchmark's own: a put a prediction."""
    return with_store(make_naive(model, cores), "torchserve-naive-s3")


def make_stock(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The stock image_classifier on TorchServe's defaults: no batching, its logging, its JVM."""
    return TorchServeUnderTest(
        "torchserve-stock",
        lambda folder, _: archives.build_stock(model, None, folder),
        stock=True,
    )


def make_stock_fixed(model: ModelUnderTest, cores: int) -> TorchServeUnderTest:
    """The stock image_classifier with our batch settings, one thread a worker and a fit JVM."""
    config = {
        key: value
        for key, value in archives.offpath_config(model, cores).items()
        if key != "handler"
    }
    return TorchServeUnderTest(
        "torchserve-fixed",
        lambda folder, asked: archives.build_stock(model, asked, folder),
        config,
        stock=True,
        overrides={"vmargs": "-Xms2g -Xmx2g -XX:+UseParallelGC"},
        env={"OMP_NUM_THREADS": "1"},
    )
