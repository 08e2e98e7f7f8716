"""What a result must say of the machine and the versions it came from. No names of the machine."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.nvml import NoGpu, NvmlReader
from offpath.serving.torchserve.java import find_java

PACKAGES = (
    "torch",
    "torchvision",
    "torchserve",
    "torch-model-archiver",
    "captum",
    "numpy",
    "pillow",
    "simplejpeg",
    "locust",
    "geventhttpclient",
)


def describe_host() -> dict[str, Any]:
    """Processor, memory, kernel, GPUs if any, Python, Java, packages and our own revision."""
    gpus = read_gpus()
    return {
        "cpu": read_cpu_model(),
        "cores": count_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        **({"gpu": gpus} if gpus else {}),
        "python": platform.python_version(),
        "java": read_java(),
        "packages": read_versions(PACKAGES),
        "offpath": read_revision(),
    }


def read_cpu_model() -> str:
    """The processor's name as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read_gpus() -> str:
    """Names of the NVIDIA GPUs, and the driver; empty without one, or without nvidia-ml-py."""
    try:
        with closing(NvmlReader()) as reader:
            return reader.describe()
    except NoGpu:
        return ""


def read_java() -> str:
    """Version and origin of the Java that TorchServe runs on, "none" without one."""
    try:
        java = find_java()
    except ExpectedError:
        return "none"
    return f"{java.major} ({java.source})"


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def read_revision() -> str:
    """The git revision of this checkout, `+` where files differ from it; "not a checkout"."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always"]
    # No tag's name, which would not say which commit it is.
    options = ["--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(
            [*git, *options], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return done.stdout.strip()
