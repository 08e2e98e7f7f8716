"""The facts of the machine that a result needs (never its name), and samples of its NVIDIA GPUs.

Without a GPU, a driver or nvidia-ml-py there are no readings.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
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
    "captum",
    "numpy",
    "pillow",
    "simplejpeg",
    "locust",
    "geventhttpclient",
)


@dataclass(frozen=True)
class GpuReading:
    """A reading of one device.

    Attributes:
        utilisation: share of NVML's last interval in which a kernel ran, 0 to 1. It tells that the
            device was busy, not how much of it. None where the device does not report it (MIG).
        memory_used_bytes: memory of all processes on the device.
        jpeg_utilisation: the same share for the JPEG engine; None where the device has none.
    """

    utilisation: float | None
    memory_used_bytes: int
    jpeg_utilisation: float | None = None


class NoGpu(Exception):
    """There is no GPU to read: no package, no driver, no device, or the device was lost."""


class NvmlReader:
    """All GPUs that NVML shows to this process; each method raises NoGpu when it cannot read."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoGpu from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            raise NoGpu from error
        if not self._handles:
            self.close()
            raise NoGpu

    def describe(self) -> str:
        try:
            names = [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]
            return ", ".join([*names, f"driver {self._nvml.nvmlSystemGetDriverVersion()}"])
        except self._nvml.NVMLError as error:
            raise NoGpu from error

    def read(self) -> list[GpuReading]:
        try:
            return [
                GpuReading(
                    self._read_share(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                    int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used),
                    self._read_share(lambda: self._nvml.nvmlDeviceGetJpgUtilization(handle)[0]),
                )
                for handle in self._handles
            ]
        except self._nvml.NVMLError as error:
            raise NoGpu from error

    def _read_share(self, read_percent: Callable[[], int]) -> float | None:
        try:
            return float(read_percent()) / 100
        except (
            self._nvml.NVMLError_NotSupported,
            self._nvml.NVMLError_FunctionNotFound,  # a driver older than the call
        ):
            return None

    def close(self) -> None:
        self._nvml.nvmlShutdown()


class GpuSampler:
    """Samples all GPUs at once, on a thread of its own, while the `with` block runs."""

    def __init__(self) -> None:
        self.readings: list[list[GpuReading]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuSampler:
        with contextlib.suppress(NoGpu):
            reader = NvmlReader()
            self._thread = threading.Thread(target=self._sample, args=(reader,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, reader: NvmlReader) -> None:
        with contextlib.closing(reader):
            while not self._ended.wait(INTERVAL_S):
                with contextlib.suppress(NoGpu):
                    self.readings.append(reader.read())


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
