"""A handler in a process of its own, which profiles it and writes what was found as JSON.

The process gets its job on stdin. Whatever the handler prints goes to a log file, and the end of
that log is quoted when the process dies.

python -m offpath.profiling.profilers.handler_process RESULT
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import offpath
from offpath.handler.errors import ExpectedError
from offpath.profiling.profilers.cprofile import CallCollector
from offpath.profiling.profilers.flame import FlameCollector
from offpath.profiling.profilers.handler_driver import (
    Collector,
    Driver,
    LoadedHandler,
    load_handler,
)
from offpath.profiling.profilers.handlers import HandlerSpec
from offpath.profiling.profilers.lines import LineCollector, choose_functions
from offpath.profiling.profilers.samples import BatchSample, make_shortener
from offpath.profiling.profilers.stages import (
    StageCollector,
    collect_stages,
    save_trace,
)

STAGES, CPROFILE, LINES, FLAME = "stages", "cprofile", "lines", "flame"
MODULE = "offpath.profiling.profilers.handler_process"
LOG_TAIL_CHARACTERS = 2000
# The folder that holds the package `offpath`.
ROOT = Path(offpath.__file__).parents[1]


@dataclass(frozen=True)
class Job:
    """A profile of one handler.

    Attributes:
        kind: STAGES, CPROFILE, LINES or FLAME.
        warm_up, batches: number of batches before and while the handler is watched.
        functions: for LINES, each as `module:qualified.name`. If empty, the handler's stages.
        file: path of the file to write beside the result; None for none.
    """

    kind: str
    spec: HandlerSpec
    images: tuple[str, ...]
    warm_up: int
    batches: int
    functions: tuple[str, ...] = ()
    file: str | None = None


@dataclass(frozen=True)
class Profile:
    """The result of a job.

    Attributes:
        found: functions or lines, under the name of their kind.
        refused: number of requests that the handler did not answer with 200.
        error: why there is no profile; empty if there is one.
    """

    batches: list[BatchSample] = field(default_factory=list)
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    refused: int = 0
    error: str = ""


def profile_handler(job: Job, folder: Path) -> Profile:
    """Runs a job in a process of its own, which ends with this call and with this process.

    Raises:
        ExpectedError: the handler cannot be loaded, raises or refuses the images, or the process
            died.
    """
    name, result, log_file = job.spec.name, folder / "profile.json", folder / "log.txt"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(result)],
            env={**os.environ, "PYTHONPATH": path, **job.spec.environ},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process, which then ends that one.
            start_new_session=True,
        )
    try:
        if process.stdin is None:
            raise RuntimeError("started without a pipe")
        # It stays open: its end tells the process that this one is gone.
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if not result.exists():
        printed = log_file.read_text(encoding="utf-8", errors="replace")
        raise ExpectedError(
            f"handler {name!r}: its process ended with {code};"
            f" the last it printed:\n{printed[-LOG_TAIL_CHARACTERS:].rstrip()}"
        )
    profile = msgspec.json.decode(result.read_bytes(), type=Profile)
    if profile.error:
        raise ExpectedError(f"handler {name!r}: {profile.error}")
    return profile


def try_job(job: Job) -> Profile:
    """Does a job; an error becomes text, with a traceback if it is the handler's."""
    doing = "initialize"
    try:
        handler = load_handler(job.spec)
        doing = "handle"
        return run_job(job, handler)
    except ExpectedError as error:
        return Profile(error=str(error))
    except Exception as error:
        trace = "".join(traceback.format_exception(error))[-LOG_TAIL_CHARACTERS:].rstrip()
        return Profile(error=f"raised in {doing}: {type(error).__name__}: {error}\n{trace}")


def run_job(job: Job, handler: LoadedHandler) -> Profile:
    driver = Driver(handler, [Path(path).read_bytes() for path in job.images], job.spec.batch_size)
    list(driver.run(job.warm_up, Collector()))
    if driver.refused:
        raise ExpectedError(
            f"the handler refused {driver.refused} images of the warm-up;"
            " expected images that it can decode"
        )
    collector = make_collector(job, handler)
    batches = list(driver.run(job.batches, collector))
    file = None if job.file is None else Path(job.file)
    if isinstance(collector, StageCollector) and file is not None:
        save_trace(driver, collector, file)
    found = collector.finish(make_shortener(job.spec.folder), file)
    return Profile(batches, found, driver.refused)


def make_collector(job: Job, handler: LoadedHandler) -> Collector:
    if job.kind == CPROFILE:
        return CallCollector()
    if job.kind == LINES:
        return LineCollector(choose_functions(handler, job.functions))
    if job.kind == FLAME:
        return FlameCollector(f"{job.spec.name}: handle")
    return collect_stages(handler)


def follow_stdin() -> None:
    """Ends this process when the other end of stdin is closed."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    # Before the handler changes the working folder.
    target = Path(sys.argv[1]).resolve()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=follow_stdin, daemon=True).start()
    written = msgspec.json.encode(try_job(job))
    target.with_suffix(".partial").write_bytes(written)
    target.with_suffix(".partial").replace(target)
    # Background threads of the handler (log shipping, an engine's pool) would delay the exit.
    sys.stdout.flush()
    os._exit(0)
