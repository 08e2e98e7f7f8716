"""Physical limits of the cores, measured in the same run: no server on them can exceed these.

decode: decode + resize alone, with our own code, in one process per core with one thread each.
forward: the model alone on batches in eager fp32, in the same way.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.synchronize import Barrier
from pathlib import Path

from offpath.errors import ExpectedError
from offpath.profiling.core.run import Figures
from offpath.serving.process.guard import follow_parent

# Time for all processes to import torch and load the model.
START_TIMEOUT_S = 120.0

_barrier: Barrier | None = None


@dataclass(frozen=True)
class Rate:
    """The images that a process handled, the time, and the CPU that it got."""

    images: int
    elapsed_s: float
    cpu_s: float


class LimitMeter:
    """One process per core, started once; each measurement uses all of them at once."""

    def __init__(self, model: str, cores: int, batch_size: int, seconds: float) -> None:
        self._model, self._batch_size, self._seconds = model, batch_size, seconds
        self._cores = cores
        self._pool = self._make_pool()

    def _make_pool(self) -> ProcessPoolExecutor:
        # The processes start with the first measurement.
        # Spawned, not forked: torch's thread pools do not survive a fork.
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(self._cores)
        return ProcessPoolExecutor(self._cores, context, start_together, (barrier,))

    def __enter__(self) -> LimitMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def measure_decode(self, paths: Sequence[Path]) -> Figures:
        return self._measure(decode_for, self._model, list(paths))

    def measure_forward(self) -> Figures:
        import torch

        figures = self._measure(forward_for, self._model, self._batch_size)
        if torch.cuda.is_available():
            # Each process would keep a CUDA context of a gigabyte beside the servers'.
            self._pool.shutdown()
            self._pool = self._make_pool()
        return figures

    def _measure(self, work: Callable[..., Rate], *args: object) -> Figures:
        """Returns the figures of all processes together.

        `other_cores` did not work for the measurement, because others were busy on them.
        """
        running = [self._pool.submit(work, self._seconds, *args) for _ in range(self._cores)]
        rates = [future.result() for future in running]
        cpu_s, elapsed_s = sum(r.cpu_s for r in rates), max(r.elapsed_s for r in rates)
        return {
            "images": sum(r.images for r in rates),
            "elapsed_s": round(elapsed_s, 4),
            "cpu_s.limit": round(cpu_s, 3),
            "other_cores": round(max(0.0, self._cores - cpu_s / elapsed_s), 4),
        }


def start_together(barrier: Barrier) -> None:
    """Sets a process up with one thread, as in the workers, and the barrier of `run_for`."""
    global _barrier
    import torch

    # Ctrl-C reaches the whole foreground group; only the parent decides, and ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
    torch.set_num_threads(1)
    _barrier = barrier


def run_for(seconds: float, step: Callable[[], int]) -> Rate:
    """Waits for the other processes, then calls `step`, which returns images, for some seconds."""
    if _barrier is None:
        raise RuntimeError("not in a process of LimitMeter")
    step()
    _barrier.wait(START_TIMEOUT_S)
    begin, cpu = time.perf_counter(), time.process_time()
    images = 0
    while (elapsed_s := time.perf_counter() - begin) < seconds:
        images += step()
    return Rate(images, elapsed_s, time.process_time() - cpu)


def decode_for(seconds: float, model: str, paths: Sequence[Path]) -> Rate:
    from offpath.handler.errors import ItemError
    from offpath.handler.image.decode import decode_image
    from offpath.handler.image.torch_transform import transform_with_torch
    from offpath.profiling.load.model_under_test import load_model

    config = load_model(model).config
    options = config.decode_options
    # TorchServe hands a bytearray to a handler.
    payloads = cycle([(path, bytearray(path.read_bytes())) for path in paths])

    def step() -> int:
        path, payload = next(payloads)
        try:
            image = decode_image(payload, options)
        except ItemError as error:
            raise ExpectedError(f"photograph {str(path)!r} cannot be decoded: {error}") from error
        transform_with_torch(image, config.input_geometry)
        return 1

    return run_for(seconds, step)


def forward_for(seconds: float, model: str, batch_size: int) -> Rate:
    import torch

    from offpath.handler.config import HandlerConfig
    from offpath.handler.model.batch_runner import BatchRunner
    from offpath.handler.model.engines.eager import EagerEngine
    from offpath.handler.stages import StageTimer
    from offpath.profiling.load.model_under_test import load_model

    loaded = load_model(model)
    config = HandlerConfig.from_mapping(loaded.source.handler, environ={})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    engine = EagerEngine(loaded.source.module.eval().to(device), config, device, "fp32")
    runner = BatchRunner(engine, config, device, batch_size)
    runner.warm_up()

    def step() -> int:
        runner.run(batch_size, StageTimer())
        return batch_size

    return run_for(seconds, step)
