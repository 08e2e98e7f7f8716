"""The facts of machine and versions that a result needs; no name of the machine."""

from __future__ import annotations

import platform
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.gpu import NoGpu, NvmlReader
from offpath.serving.check.host import read_cpu_model, read_versions
from offpath.serving.torchserve.launch import find_java

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


def read_gpus() -> str:
    try:
        with closing(NvmlReader()) as reader:
            return reader.describe()
    except NoGpu:
        return ""


def read_java() -> str:
    try:
        java = find_java()
    except ExpectedError:
        return "none"
    return f"{java.major} ({java.source})"


def read_revision() -> str:
    """Returns the git revision, with `+` where files differ from it; or "not a checkout"."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always"]
    # The name of a tag would not tell the commit.
    options = ["--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run([*git, *options], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not a checkout"
    return done.stdout.strip()
