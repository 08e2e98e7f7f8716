"""The facts of the machine that a result needs (never its name), and samples of its NVIDIA GPUs.

Without a GPU, a driver or nvidia-ml-py there are no readings.
"""

from __future__ import annotations

import platform
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.serving.check.host import read_cpu_model, read_versions
from offpath.serving.torchserve.launch import find_java

# NVML itself averages utilisation over 1/6 s to 1 s, depending on the GPU: reading more often gives
# the same figure twice.
INTERVAL_S = 0.25
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


# Figure of a device -> value: `memory_bytes` of all processes on it, and two shares of NVML's last
# interval, `utilisation` in which a kernel ran (it tells that the device was busy, not how much of
# it) and `jpeg_utilisation` of the JPEG engine. A share that a device does not report (MIG, no JPEG
# engine) is left out.
GpuReading = dict[str, float]


@cache
def find_gpus() -> tuple[Any, list[Any]]:
    """Returns NVML's bindings and a handle of each GPU, if there is any to read."""
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    except pynvml.NVMLError:
        return pynvml, []


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """Reads one device; NVMLError where it was lost."""
    reading = {"memory_bytes": float(nvml.nvmlDeviceGetMemoryInfo(handle).used)}
    percents: dict[str, Callable[[], int]] = {
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "jpeg_utilisation": lambda: nvml.nvmlDeviceGetJpgUtilization(handle)[0],
    }
    # A driver older than the call does not find it.
    unknown = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
    for name, read_percent in percents.items():
        with suppress(*unknown):
            reading[name] = read_percent() / 100
    return reading


@contextmanager
def sampling_gpus(readings: list[list[GpuReading]]) -> Iterator[None]:
    """Adds a reading of all GPUs at once, again and again, while the `with` block runs."""
    ended = threading.Event()

    def sample() -> None:
        nvml, handles = find_gpus()
        while handles and not ended.wait(INTERVAL_S):
            with suppress(nvml.NVMLError):
                readings.append([read_gpu(nvml, handle) for handle in handles])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def describe_host() -> dict[str, Any]:
    gpus = name_gpus()
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


def name_gpus() -> str:
    nvml, handles = find_gpus()
    if not handles:
        return ""
    try:
        names = [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]
        return ", ".join([*names, f"driver {nvml.nvmlSystemGetDriverVersion()}"])
    except nvml.NVMLError:
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
