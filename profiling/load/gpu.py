"""Utilisation and memory of the NVIDIA GPUs while a block runs, through NVML (nvidia-ml-py).

    with GpuSampler() as gpu:
        ...
    gpu.samples

Where there is no GPU, no driver or no nvidia-ml-py, the block runs all the same and
`samples.absent` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from offpath.profiling.load.sampling import Ticker

# NVML averages utilisation over 1/6 s to 1 s itself, by the GPU's generation: more often than this
# gives the same figure twice.
INTERVAL_S = 0.25


@dataclass(frozen=True)
class GpuReading:
    """One device at one moment.

    Attributes:
        at_s: seconds since the block began.
        utilisation: share of NVML's last interval in which a kernel ran, 0 to 1. It says that the
            device was busy, not how much of it. None where the device does not tell (MIG).
        memory_used_bytes: of all processes on the device.
    """

    at_s: float
    device: int
    utilisation: float | None
    memory_used_bytes: int


@dataclass
class GpuSamples:
    """What a block's sampling left.

    Attributes:
        devices: index, name, memory_bytes of each device.
        absent: why there are no readings, or no further ones; None where all went well.
    """

    devices: list[dict[str, Any]] = field(default_factory=list)
    readings: list[GpuReading] = field(default_factory=list)
    absent: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a result file."""
        return asdict(self)


class NoGpu(Exception):
    """There is no GPU to read; the message says why."""


class NvmlReader:
    """All GPUs that NVML shows to this process.

    Raises:
        NoGpu: nvidia-ml-py is not installed, no driver, or no device.
    """

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
        except pynvml.NVMLError as error:
            raise NoGpu(f"no NVIDIA driver: {error}") from error
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        if not self._handles:
            self.close()
            raise NoGpu("the NVIDIA driver shows no GPU")

    def list_devices(self) -> list[dict[str, Any]]:
        """index, name, memory_bytes of each."""
        return [
            {
                "index": index,
                "name": str(self._nvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total),
            }
            for index, handle in enumerate(self._handles)
        ]

    def read(self, at_s: float) -> list[GpuReading]:
        """One reading a device, now; raises NoGpu when they cannot be read any more."""
        try:
            return [
                GpuReading(
                    round(at_s, 3),
                    index,
                    self._read_utilisation(handle),
                    int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used),
                )
                for index, handle in enumerate(self._handles)
            ]
        except self._nvml.NVMLError as error:
            raise NoGpu(f"reading stopped after {at_s:.1f} s: {error}") from error

    def _read_utilisation(self, handle: Any) -> float | None:
        try:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        except self._nvml.NVMLError_NotSupported:
            return None
        return float(rates.gpu) / 100

    def close(self) -> None:
        """Lets the library go."""
        self._nvml.nvmlShutdown()


class GpuSampler:
    """Samples the GPUs on a thread of its own while the `with` block runs.

    Args:
        interval_s: between two readings.
        open_reader: gives the reader; raises NoGpu where there is nothing to read.
    """

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
        self._open.enter_context(
            Ticker(self._interval_s, lambda at_s: self._sample(reader, at_s))
        )
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
