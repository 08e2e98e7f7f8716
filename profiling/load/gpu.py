"""Utilisation and memory of the NVIDIA GPUs while a block runs, through NVML (nvidia-ml-py).

    with GpuSampler() as gpu:
        ...
    gpu.samples

Without a GPU, a driver or nvidia-ml-py the block runs all the same, and `samples.absent` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from offpath.profiling.core.nvml import GpuReading, NoGpu, NvmlReader
from offpath.profiling.load.sampling import Ticker

# NVML itself averages utilisation over 1/6 s to 1 s, depending on the GPU: reading more often gives
# the same figure twice.
INTERVAL_S = 0.25


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
