"""Classifies the pictures of one part with the archive's handler, and stores their rows.

A part is a fixed list of pictures, and its file is stored whole. A part that is repeated replaces
its file, so no picture is lost or there twice.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson

from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE, S3Options
from offpath.serving.service.archived_handler import ArchivedHandler
from offpath.serving.service.messages import Request
from offpath.serving.storage import READERS, Storage

# Pictures that one task of a reading thread reads, because a task per picture costs 0.1 ms.
CHUNK = 8
# Chunks of a part that are being read, or wait in memory.
CHUNKS_AHEAD = 16
# Keys of a row, and their types in a Parquet file as DuckDB names them.
COLUMNS = {
    **{"input": "VARCHAR", "status": "SMALLINT", "label": "VARCHAR"},
    **{"score": "DOUBLE", "error": "VARCHAR", "answer": "VARCHAR"},
}
BUSY = 503


class ModelBroken(Exception):
    """The model cannot recover in this process."""


@dataclass(frozen=True)
class Job:
    """The facts that every worker of a run needs.

    Attributes:
        output: folder or s3://bucket/prefix of the results.
        batch_size: pictures per batch.
        threads: threads per worker.
        gpus: indexes of the GPUs that the workers take in turn; none for the CPU. Ray ignores them.
        most_bytes: size of the largest file that is read, because it stays in memory.
    """

    output: str
    batch_size: int
    threads: int
    gpus: Sequence[int]
    s3: S3Options
    most_bytes: int


class PartRunner:
    """The handler of an unpacked archive, for parts."""

    def __init__(self, job: Job, folder: Path, gpu: int | None) -> None:
        os.environ[URI_VARIABLE] = OFF  # the rows are the record of this run
        self._job, self._storage = job, Storage(job.s3)
        self._handler = ArchivedHandler(folder, gpu=gpu, threads=job.threads)
        self._readers = ThreadPoolExecutor(READERS, "read")

    def run(self, part: str, names: Sequence[str]) -> None:
        """Classifies the named pictures and stores the part's file; raises ModelBroken."""
        rows: list[bytes] = []
        pictures = self._read_ahead(names)
        while batch := list(islice(pictures, self._job.batch_size)):
            rows += self._answer(batch)
        content = b"".join(rows)
        if part.endswith(".parquet"):
            content = make_parquet(content)
        self._storage.write(f"{self._job.output}/{part}", content)

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
                contents.append(self._storage.read(name, self._job.most_bytes))
            except (OSError, ValueError) as error:
                contents.append(f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return contents

    def _answer(self, batch: Sequence[tuple[str, bytes | str]]) -> Iterator[bytes]:
        requests = [Request(body, name) for name, body in batch if type(body) is bytes]
        answers = self._handler.handle(requests) if requests else []
        for idx, answer in enumerate(answers):
            if answer.status == BUSY:  # no memory or time for this batch
                answers[idx] = self._handler.handle([requests[idx]])[0]
        if self._handler.diagnosis is not None:
            raise ModelBroken(self._handler.diagnosis)
        answered = iter(answers)
        for name, body in batch:
            if type(body) is bytes:
                answer = next(answered)
                yield make_row(name, answer.status, answer.body)
            else:
                unread = {"code": 404, "type": "Unreadable", "message": body}
                yield make_row(name, 404, orjson.dumps(unread))


def make_row(name: str, status: int, body: bytes) -> bytes:
    """Encodes the row of a picture as a line, from status and body of a server's answer."""
    answer = orjson.loads(body)
    row = dict.fromkeys(COLUMNS)
    # The name of a file need not be text.
    row |= {"input": os.fsencode(name).decode("utf-8", "replace"), "status": status}
    if status != 200:
        row["error"] = answer["type"]
    # A custom handler may answer in any other form.
    elif isinstance(answer, dict) and {*map(type, answer.values())} == {float}:
        row["label"], row["score"] = next(iter(answer.items()))
    row["answer"] = orjson.Fragment(body)
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def make_parquet(lines: bytes) -> bytes:
    import duckdb

    with tempfile.TemporaryDirectory(prefix="offpath-batch-") as folder:
        rows, parquet = f"{folder}/rows.jsonl", Path(folder) / "rows.parquet"
        Path(rows).write_bytes(lines)
        with duckdb.connect(config={"threads": 1}) as base:
            read = base.read_json(rows, format="newline_delimited", columns=COLUMNS)
            read.write_parquet(str(parquet), compression="zstd")
        return parquet.read_bytes()


def count_rows(part: str, content: bytes) -> Counter[str | None]:
    """Counts the rows of a part's file by the type of the error; None for an answer."""
    if not part.endswith(".parquet"):
        return Counter(orjson.loads(line)["error"] for line in content.splitlines())
    import duckdb

    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(content)
        file.flush()
        with duckdb.connect(config={"threads": 1}) as base:
            counts = base.read_parquet(file.name).aggregate("error, count(*)")
            return Counter(dict(counts.fetchall()))
