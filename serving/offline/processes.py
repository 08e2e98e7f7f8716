"""Runs parts in processes that are forked from one which has imported torch."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.handler.errors import ExpectedError
from offpath.serving.offline.part_runner import Job, ModelBroken, PartRunner
from offpath.serving.process.guard import follow_parent
from offpath.serving.storage import explain

# Imported once, and shared by all workers.
PRELOADED = ["torchvision", "simplejpeg", "boto3", __name__]
# Ends of workers without a finished part, beyond one for each part that is left.
MOST_BROKEN = 3

# Names of parts' files with their pictures.
Parts = Mapping[str, Sequence[str]]
# Called with the name of a stored part, and the time at which its worker began it.
OnPart = Callable[[str, float], None]

# Of a worker: the arguments of its runner, and the runner once the model is loaded.
_arguments: tuple[Any, ...] = ()
_runner: PartRunner | None = None


def run_parts(job: Job, mar: Path, workers: int, parts: Parts, on_part: OnPart) -> None:
    """Runs all parts in processes of this machine.

    Raises:
        ExpectedError: the model cannot be loaded, the storage fails, or a part ends its worker
            again and again; all others are stored then.
    """
    # Threads of OpenBLAS do not survive a fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    left, broken = dict(parts), 0
    with tempfile.TemporaryDirectory(prefix="offpath-batch-") as folder:
        unpack_mar(read_mar(mar), Path(folder))
        while left:
            before, at_once = len(left), 1 if broken else workers
            try:
                run_pool(context, job, Path(folder), at_once, left, on_part)
            except BrokenProcessPool as error:
                broken = broken + 1 if len(left) == before else 0
                if broken > len(left) + MOST_BROKEN:
                    raise ExpectedError(
                        f"{len(left)} parts are missing, for instance {min(left)}: workers end "
                        "(out of memory?) when they load the model or classify one of its "
                        "pictures; all other parts are stored"
                    ) from error
                # Those that were running come last, so that one cannot hold up the others.
                for part in list(left)[:at_once]:
                    left[part] = left.pop(part)


def run_pool(
    context: Any,
    job: Job,
    folder: Path,
    workers: int,
    left: dict[str, Sequence[str]],
    on_part: OnPart,
) -> None:
    """Runs parts in one pool, and removes those that are stored from `left`."""
    numbers = context.SimpleQueue()
    for number in range(workers):
        numbers.put(number)
    pool = ProcessPoolExecutor(workers, context, prepare, (job, folder, numbers))
    try:
        futures = [pool.submit(run_part, job, *part) for part in left.items()]
        for future in as_completed(futures):
            part, began_s, failure = future.result()
            if failure:
                raise ExpectedError(failure)
            del left[part]
            on_part(part, began_s)
    finally:
        for worker in multiprocessing.active_children():
            worker.kill()
        pool.shutdown(cancel_futures=True)


def prepare(job: Job, folder: Path, numbers: Any) -> None:
    """Sets a worker up; its model is loaded with its first part."""
    global _arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Its only warning is that TensorRT is not installed, which no archive of ours needs.
    logging.getLogger("ts.torch_handler.base_handler").setLevel(logging.ERROR)
    follow_parent()
    number = numbers.get()
    gpu = job.gpus[number % len(job.gpus)] if job.gpus else None
    _arguments = job, folder, gpu


def run_part(job: Job, part: str, names: Sequence[str]) -> tuple[str, float, str | None]:
    """Runs a part in a worker; returns what `on_part` takes, and what went wrong.

    That is a text, because the archive's own classes of errors replace ours in this process.
    """
    global _runner
    try:
        _runner = _runner or PartRunner(*_arguments)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return part, 0.0, f"the model cannot be loaded: {reason}"
    began_s, failure = time.monotonic(), None
    try:
        _runner.run(part, names)
    except ModelBroken:
        os._exit(1)
    except Exception as error:
        explained = explain(error, job.output)
        if explained is error:
            raise
        failure = f"{explained}; the same command continues with the missing parts"
    return part, began_s, failure
