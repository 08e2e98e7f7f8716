"""Classifies images part by part with the archive's classifier, and stores their rows.

A part is a fixed list of images, and its file is stored whole. A part that is repeated replaces
its file, so no image is lost or there twice. Parts run in processes that are forked from one
which has imported torch.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.errors import ExpectedError
from offpath.handler.contract import Request
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE, S3Options
from offpath.serving.process.guard import follow_parent
from offpath.serving.service.archived_classifier import load_classifier
from offpath.serving.storage import READERS, Storage, explain

# Images that one task of a reading thread reads, because a task per image costs 0.1 ms.
CHUNK = 8
# Chunks of a part that are being read, or wait in memory.
CHUNKS_AHEAD = 16
KEYS = ("input", "status", "label", "score", "error", "answer")
BUSY = 503
# Imported once, and shared by all workers.
PRELOADED = ["offpath.handler.process.light_torchvision", "simplejpeg", "boto3", __name__]
# Ends of workers without a finished part, beyond one for each part that is left.
MAX_BROKEN = 3

# Names of parts' files with their images.
Parts = Mapping[str, Sequence[str]]
# Called with the name of a stored part, and the time at which its worker began it.
OnPart = Callable[[str, float], None]


class ModelBroken(Exception):
    """The model cannot recover in this process."""


@dataclass(frozen=True)
class Job:
    """The facts that every worker of a run needs.

    Attributes:
        output: folder or s3://bucket/prefix of the results.
        batch_size: images per batch.
        threads: threads per worker.
        gpus: indexes of the GPUs that the workers take in turn; none for the CPU.
        max_bytes: size of the largest file that is read, because it stays in memory.
    """

    output: str
    batch_size: int
    threads: int
    gpus: Sequence[int]
    s3: S3Options
    max_bytes: int


class PartRunner:
    """The classifier of an unpacked archive, for parts."""

    def __init__(self, job: Job, folder: Path, gpu: int | None) -> None:
        os.environ[URI_VARIABLE] = OFF  # the rows are the record of this run
        self._job, self._storage = job, Storage(job.s3)
        self._classifier = load_classifier(folder, gpu=gpu, threads=job.threads)
        self._readers = ThreadPoolExecutor(READERS, "read")

    def run(self, part: str, names: Sequence[str]) -> None:
        """Classifies the named images and stores the part's file; raises ModelBroken."""
        rows: list[bytes] = []
        images = self._read_ahead(names)
        while batch := list(islice(images, self._job.batch_size)):
            rows += self._answer(batch)
        self._storage.write(f"{self._job.output}/{part}", b"".join(rows))

    def _read_ahead(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | str]]:
        """Yields each name with its content, or with the reason why it cannot be read."""
        left, chunks = iter(names), deque[Future[list[bytes | str]]]()
        chosen = deque[list[str]]()
        while True:
            while len(chunks) < CHUNKS_AHEAD and (some := list(islice(left, CHUNK))):
                chosen.append(some)
                chunks.append(self._readers.submit(self._read, some))
            if not chunks:
                return
            yield from zip(chosen.popleft(), chunks.popleft().result())

    def _read(self, names: Sequence[str]) -> list[bytes | str]:
        contents: list[bytes | str] = []
        for name in names:
            try:
                contents.append(self._storage.read(name, self._job.max_bytes))
            except (OSError, ValueError) as error:
                contents.append(f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return contents

    def _answer(self, batch: Sequence[tuple[str, bytes | str]]) -> Iterator[bytes]:
        requests = [Request(body, name) for name, body in batch if type(body) is bytes]
        replies = self._classifier.classify(requests) if requests else []
        for idx, reply in enumerate(replies):
            if reply.status == BUSY:  # no memory or time for this batch
                replies[idx] = self._classifier.classify([requests[idx]])[0]
        if self._classifier.health is not None:
            raise ModelBroken(self._classifier.health)
        answered = iter(replies)
        for name, body in batch:
            if type(body) is bytes:
                reply = next(answered)
                yield make_row(name, reply.status, reply.body)
            else:
                unread = {"code": 404, "type": "Unreadable", "message": body}
                yield make_row(name, 404, orjson.dumps(unread))


def make_row(name: str, status: int, body: bytes) -> bytes:
    """Encodes the row of an image as a line, from status and body of a server's reply."""
    reply = orjson.loads(body)
    row: dict[str, Any] = dict.fromkeys(KEYS)
    # The name of a file need not be text.
    row |= {"input": os.fsencode(name).decode("utf-8", "replace"), "status": status}
    if status != 200:
        row["error"] = reply["type"]
    # A custom handler may answer in any other form.
    elif isinstance(reply, dict) and {*map(type, reply.values())} == {float}:
        row["label"], row["score"] = next(iter(reply.items()))
    row["answer"] = orjson.Fragment(body)
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


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
                if broken > len(left) + MAX_BROKEN:
                    raise ExpectedError(
                        f"{len(left)} parts are missing, for instance {min(left)}: workers end "
                        "(out of memory?) when they load the model or classify one of its "
                        "images; all other parts are stored"
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
