"""The NVIDIA GPUs of this machine, through NVML (nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuReading:
    """A reading of one device.

    Attributes:
        at_s: seconds since the sampling began.
        utilisation: share of NVML's last interval in which a kernel ran, 0 to 1. It tells that the
            device was busy, not how much of it. None where the device does not report it (MIG).
        memory_used_bytes: memory of all processes on the device.
        jpeg_utilisation: the same share for the JPEG engine; None where the device has none.
    """

    at_s: float
    device: int
    utilisation: float | None
    memory_used_bytes: int
    jpeg_utilisation: float | None = None


class NoGpu(Exception):
    """Raised where there is no GPU to read; the message says why."""


class NvmlReader:
    """All GPUs that NVML shows to this process; raises NoGpu where there are none to read."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoGpu(
                "nvidia-ml-py is not installed; pip install 'torchserve-offpath[bench]'"
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            raise NoGpu(f"no NVIDIA driver: {error}") from error
        if not self._handles:
            self.close()
            raise NoGpu("the NVIDIA driver shows no GPU")

    def describe(self) -> str:
        """Returns names and driver for a result; raises NoGpu when they cannot be read."""
        try:
            names = [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]
            driver = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError as error:
            raise NoGpu(f"the NVIDIA driver does not say: {error}") from error
        return ", ".join([*names, f"driver {driver}"])

    def list_devices(self) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "name": str(self._nvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total),
            }
            for index, handle in enumerate(self._handles)
        ]

    def read(self, at_s: float) -> list[GpuReading]:
        """Returns one reading per device; raises NoGpu when the devices cannot be read any more."""
        try:
            return [
                GpuReading(
                    round(at_s, 3),
                    index,
                    self._read_share(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                    int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used),
                    self._read_share(lambda: self._nvml.nvmlDeviceGetJpgUtilization(handle)[0]),
                )
                for index, handle in enumerate(self._handles)
            ]
        except self._nvml.NVMLError as error:
            raise NoGpu(f"reading stopped after {at_s:.1f} s: {error}") from error

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
