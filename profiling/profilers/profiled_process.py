"""A handler in a process of its own, which profiles it and writes what was found as JSON.

No server runs. What a handler does to its process (threads, allocator, logging) affects no other
handler. Our own archive is loaded and called as a classifier (handler/contract.py). Somebody else's
handler is loaded as TorchServe's worker does, with a real context and real metrics. All handlers of
a run get the same images in the same order. Each body is a new bytearray, as a server delivers it.

The process gets its job on stdin. Whatever the handler prints goes to a log file, and the end of
that log is quoted when the process dies.

python -m offpath.profiling.profilers.profiled_process RESULT
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import random
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

import offpath
from offpath.errors import ExpectedError
from offpath.handler.contract import Request
from offpath.profiling.profilers.collector import (
    BatchSample,
    Collector,
    FunctionSample,
    LineSample,
    LoadedHandler,
)
from offpath.profiling.profilers.handler_profilers import PROFILERS
from offpath.serving.service.archived_classifier import ENTRY_FILE, load_classifier, load_entry

MODULE = "offpath.profiling.profilers.profiled_process"
MODEL_NAME = "classifier"
DEFAULT_BATCH_SIZE = 8
# The module of a class of the user's, without an archive.
ENTRY = "profiled_entry.py"
LOG_TAIL_CHARACTERS = 2000
# The folder that holds the package `offpath`.
ROOT = Path(offpath.__file__).parents[1]


@dataclass(frozen=True)
class HandlerSpec:
    """Everything that a process needs to load one handler.

    Attributes:
        folder: the unzipped archive.
        entry: the manifest's handler, in the form that `ts.model_loader` takes.
    """

    name: str
    folder: str
    entry: str
    batch_size: int = DEFAULT_BATCH_SIZE
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileJob:
    """A profile of one handler.

    Attributes:
        kind: a key of PROFILERS.
        warm_up, batches: number of batches before and while the handler is watched.
        file: path of the file that some profilers write.
    """

    kind: str
    spec: HandlerSpec
    images: tuple[str, ...]
    warm_up: int
    batches: int
    file: str = ""


@dataclass(frozen=True)
class Profile:
    """The result of a job.

    Attributes:
        functions, lines: found by `cprofile` and by `lines`.
        refused: number of requests that the handler did not answer with 200.
        error: why there is no profile; empty if there is one.
    """

    batches: list[BatchSample] = field(default_factory=list)
    functions: list[FunctionSample] = field(default_factory=list)
    lines: list[LineSample] = field(default_factory=list)
    refused: int = 0
    error: str = ""


def profile_handler(job: ProfileJob, folder: Path) -> Profile:
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


def try_job(job: ProfileJob) -> Profile:
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


def load_handler(spec: HandlerSpec) -> LoadedHandler:
    """Loads and initialises the handler. Errors of the handler itself pass through."""
    os.chdir(spec.folder)
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    import torch

    torch.set_num_threads(1)
    folder, gpu = Path(spec.folder), 0 if torch.cuda.is_available() else None
    # A custom handler that overrides `handle` needs TorchServe.
    if spec.entry == ENTRY_FILE and not hasattr(load_entry(folder / ENTRY_FILE).BASE, "handle"):
        return LoadedHandler(load_classifier(folder, spec.batch_size, gpu).classify)
    return load_as_torchserve(spec, gpu)


def load_as_torchserve(spec: HandlerSpec, gpu: int | None) -> LoadedHandler:
    """Loads a handler as TorchServe's worker does: the archive is first on the import path."""
    from ts.model_loader import TsModelLoader

    from offpath.archive.torchserve_metrics import make_default_metrics

    sys.path.insert(0, spec.folder)
    if spec.entry == ENTRY:
        # The loader would report an import that fails as a missing handler.
        importlib.import_module(Path(ENTRY).stem)
    load, metrics = TsModelLoader().load, make_default_metrics()
    service = load(MODEL_NAME, spec.folder, spec.entry, gpu, spec.batch_size, None, True, metrics)
    service.set_cl_socket(None)
    return LoadedHandler(service._entry_point, service.context)


def run_job(job: ProfileJob, handler: LoadedHandler) -> Profile:
    driver = Driver(handler, [Path(path).read_bytes() for path in job.images], job.spec.batch_size)
    list(driver.run(job.warm_up, Collector()))
    if driver.refused:
        raise ExpectedError(
            f"the handler refused {driver.refused} images of the warm-up;"
            " expected images that it can decode"
        )
    collector = PROFILERS[job.kind].make(handler, job.spec.name)
    batches = list(driver.run(job.batches, collector))
    found = collector.finish(make_shortener(job.spec.folder), Path(job.file))
    functions = [sample for sample in found if isinstance(sample, FunctionSample)]
    lines = [sample for sample in found if isinstance(sample, LineSample)]
    return Profile(batches, functions, lines, driver.refused)


class Driver:
    """A sender of batches to one handler."""

    def __init__(self, handler: LoadedHandler, images: Sequence[bytes], batch_size: int) -> None:
        self._handler, self._batch_size = handler, batch_size
        self._requests = make_requests(images)
        self.refused = 0

    def run(self, batches: int, collector: Collector) -> Iterator[BatchSample]:
        """Handles batches one after the other. Errors of the handler pass through.

        Raises ExpectedError if the handler does not return one reply per request.
        """
        for _ in range(batches):
            batch = list(itertools.islice(self._requests, self._batch_size))
            arguments = make_arguments(self._handler.context, batch)
            # Only the call is inside the clock.
            with collector.watching():
                start = time.perf_counter()
                replies = self._handler.entry(*arguments)
                total_s = time.perf_counter() - start
            if not isinstance(replies, list) or len(replies) != len(batch):
                found = f"{len(replies)} replies" if isinstance(replies, list) else repr(replies)
                raise ExpectedError(
                    f"the handler answered {len(batch)} requests with {found[:200]}; expected a"
                    f" list of {len(batch)}"
                )
            statuses = read_statuses(self._handler.context, replies)
            self.refused += sum(status not in (None, 200) for status in statuses)
            yield BatchSample(len(batch), total_s, collector.take_batch())


def make_arguments(context: Any, batch: Sequence[Request]) -> tuple[Any, ...]:
    """Makes the arguments of a call; with TorchServe's context as ts/service.py does."""
    if context is None:
        return (batch,)
    from ts.service import Service

    # The form that ts/protocol/otf_message_handler.py decodes.
    kind, header = "image/jpeg", {"name": b"content-type", "value": b"image/jpeg"}
    headers, rows, ids = Service.retrieve_data_for_inference(
        [
            {
                "requestId": one.id.encode(),
                "headers": [header],
                "parameters": [{"name": "body", "contentType": kind, "value": one.body}],
            }
            for one in batch
        ]
    )
    context.request_ids = context.metrics.request_ids = ids
    context.request_processor = headers
    context.cl_socket = None
    return list(rows), context


def read_statuses(context: Any, replies: Sequence[Any]) -> list[int | None]:
    """Returns the replies' statuses; None where TorchServe's handler has set none."""
    if context is None:
        return [reply.status for reply in replies]
    return [one.get_response_status_code() for one in context.request_processor]


def make_requests(images: Sequence[bytes]) -> Iterator[Request]:
    """Yields requests without end."""
    # All handlers get the same images in the same order.
    chance = random.Random(0)
    order = chance.sample(range(len(images)), len(images))
    for index in itertools.cycle(order):
        request_id = uuid.UUID(int=chance.getrandbits(128), version=4)
        yield Request(bytearray(images[index]), str(request_id), {"content-type": "image/jpeg"})


def make_shortener(folder: str) -> Callable[[str], str]:
    """Returns a function that shortens source paths: reports name no folder of this machine.

    In the unzipped archive `<folder>/offpath/handler/pipeline.py` becomes `handler/pipeline.py`.
    """
    paths = sysconfig.get_paths()
    # Site-packages lies inside the standard library's folder, and the archive may lie anywhere.
    roots = [
        f"{folder}/offpath",
        folder,
        *(paths[name] for name in ("purelib", "platlib", "stdlib")),
        str(Path(__file__).parents[2]),
    ]
    return cache(partial(shorten_path, roots=roots))


def shorten_path(file: str, roots: Sequence[str]) -> str:
    """Returns the path below the first root that holds it, else its last two parts."""
    for root in roots:
        if file.startswith(root.rstrip(os.sep) + os.sep):
            return file[len(root.rstrip(os.sep)) + 1 :]
    return os.sep.join(file.split(os.sep)[-2:]) if os.sep in file else file


def follow_stdin() -> None:
    """Ends this process when the other end of stdin is closed."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    # Before the handler changes the working folder.
    target = Path(sys.argv[1]).resolve()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=ProfileJob)
    threading.Thread(target=follow_stdin, daemon=True).start()
    written = msgspec.json.encode(try_job(job))
    target.with_suffix(".partial").write_bytes(written)
    target.with_suffix(".partial").replace(target)
    # Background threads of the handler (log shipping, an engine's pool) would delay the exit.
    sys.stdout.flush()
    os._exit(0)
