"""The NVIDIA GPUs of this machine, through NVML (nvidia-ml-py), also sampled while a block runs.

    with GpuSampler() as gpu:
        ...
    gpu.samples

Without a GPU, a driver or nvidia-ml-py the block runs all the same, and `samples.absent` says why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

# NVML itself averages utilisation over 1/6 s to 1 s, depending on the GPU: reading more often gives
# the same figure twice.
INTERVAL_S = 0.25


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


@dataclass
class GpuSamples:
    """The readings of one `with` block.

    Attributes:
        devices: index, name, memory_bytes of each device.
        absent: why there are no readings, or no further readings; None where all went well.
    """

    devices: list[dict[str, Any]] = field(default_factory=list)
    readings: list[GpuReading] = field(default_factory=list)
    absent: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class GpuSampler:
    """Samples the GPUs on a thread of its own while the `with` block runs."""

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        open_reader: Callable[[], NvmlReader] = NvmlReader,
    ) -> None:
        self.samples = GpuSamples()
        self._interval_s, self._open_reader = interval_s, open_reader
        self._open = ExitStack()

    def __enter__(self) -> GpuSampler:
        try:
            reader = self._open_reader()
        except NoGpu as error:
            self.samples.absent = str(error)
            return self
        self._open.callback(reader.close)
        self.samples.devices = reader.list_devices()
        self._open.enter_context(Ticker(self._interval_s, lambda at_s: self._sample(reader, at_s)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _sample(self, reader: NvmlReader, at_s: float) -> None:
        if self.samples.absent is not None:
            return
        try:
            self.samples.readings.extend(reader.read(at_s))
        except NoGpu as error:
            self.samples.absent = str(error)


class Ticker:
    """Calls `sample` with the seconds since the block began, every `interval_s`, on a thread."""

    def __init__(self, interval_s: float, sample: Callable[[float], None]) -> None:
        self._interval_s = interval_s
        self._sample = sample
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        start = time.monotonic()
        while not self._ended.wait(self._interval_s):
            self._sample(time.monotonic() - start)
