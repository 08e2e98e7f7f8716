"""Finds the images that end workers, by notes in memory that outlives a worker.

A worker notes each batch before it begins. When the worker has died, the supervisor logs the notes
and counts a death for each image. An image with two deaths is a suspect: each worker answers it
once in a batch of its own. If the worker dies of that, the image is refused for an hour.

A hash of three kilobytes tells images apart and costs microseconds. Its key is that of the
supervisor, which its workers share. Only an image with the same SHA-256 is refused, so that no
client can have the image of another one refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from offpath.handler.contract import LEFT, Classifier, Item, Model, Reply, Request
from offpath.handler.error_kinds import ENDS_WORKERS
from offpath.handler.wire_names import BODY_HEADER, CLIENT_HEADER
from offpath.serving.service.batch_queue import ALONE
from offpath.serving.service.messages import Refused

SUSPECT_DEATHS = 2
REFUSED_S = 3600.0
# Images whose deaths are remembered, and the most bytes of one of them or of a note.
MAX_IMAGES, NOTE_BYTES = 256, 256
# What a decoder or a model dies of. The kernel and operators use other signals.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
# At the end of the log if C++ aborts for want of memory.
NO_MEMORY, LOG_BYTES = b"bad_alloc", 4096
# Until the replies of the batch before have left.
PAUSE_S = 0.05
SAMPLE_BYTES = 1024
# Mode of the file of a body once its request is in work (nginx.conf).
IN_WORK = 0o700
HEAD = struct.Struct("<qq")


class Note(NamedTuple):
    """An image in work; `sha256` is empty unless it is a suspect, which is alone."""

    image: int
    request_id: str
    client: str
    sha256: str = ""


class SharedNotes:
    """A list of tuples in memory that forked processes share; one process writes it."""

    def __init__(self, most: int) -> None:
        self._memory = mmap.mmap(-1, HEAD.size + most * NOTE_BYTES)

    def write(self, notes: Sequence[tuple[Any, ...]]) -> None:
        # Several times as fast as JSON, and only processes forked from this one read it.
        text = marshal.dumps(list(map(tuple, notes)))
        self._memory[HEAD.size : HEAD.size + len(text)] = text
        HEAD.pack_into(self._memory, 0, self.version + 1, len(text))

    @property
    def version(self) -> int:
        """The number of times that the notes were written."""
        return int(HEAD.unpack_from(self._memory)[0])

    def read(self) -> list[tuple[Any, ...]]:
        _, size = HEAD.unpack_from(self._memory)
        with contextlib.suppress(EOFError, ValueError, TypeError):  # killed while it wrote
            return list(marshal.loads(self._memory[HEAD.size : HEAD.size + size]))
        return []


class Suspects:
    """Counts the deaths of workers by the images that were in work, in the supervisor.

    Attributes:
        shared: for the workers: each image that was in two deaths, the time by `time.monotonic`
            until which that counts, and its SHA-256 if it is refused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._images: dict[int, tuple[int, float, str]] = {}
        self.shared = SharedNotes(MAX_IMAGES)

    def count_death(self, batch: Sequence[Note]) -> None:
        for image, sha256 in {one.image: one.sha256 for one in batch}.items():
            deaths, _, _ = self._images.pop(image, (0, 0.0, ""))
            self._images[image] = deaths + 1, self._clock() + REFUSED_S, sha256
        while len(self._images) > MAX_IMAGES:
            del self._images[next(iter(self._images))]  # the one with the oldest death
        found = [(k, *one[1:]) for k, one in self._images.items() if one[0] >= SUSPECT_DEATHS]
        self.shared.write(found)


class WatchedModel:
    """The model of a worker, which notes what is in work and answers suspects alone.

    Args:
        count_refused: is called for each image that is refused.
        open_request: gives a request the body that the front door has named; None without a door.
    """

    def __init__(
        self,
        model: Model,
        notes: SharedNotes,
        suspects: SharedNotes,
        count_refused: Callable[[], None],
        open_request: Callable[[Request], Request] | None,
    ) -> None:
        self._model, self._notes, self._suspects = model, notes, suspects
        self._classifier = cast(Classifier, model)  # where `classify` leaves images
        self._count_refused, self._open_request = count_refused, open_request
        self.close = model.close
        self.deadline_ms, self.in_flight = model.deadline_ms, model.in_flight
        self._lock, self._entering = threading.Lock(), threading.Lock()
        # One for each batch in work and the lane; a suspect takes all.
        self._most = model.in_flight + 1
        self._places = threading.Semaphore(self._most)
        # Thread -> what it has in work: a batch, or the costly image of the lane.
        self._in_work: dict[int, Sequence[Note]] = {}
        self._version, self._known = 0, dict[int, list[Any]]()

    @property
    def health(self) -> str | None:
        return self._model.health

    @property
    def read_s(self) -> float:
        return self._model.read_s

    def read(self, request: Request) -> Item:
        """Reads a costly image; the lane calls this, beside the batches."""
        request = self._open(request)
        with self._noting([self._make_note(hash_image(find_image(request.body)), request)]):
            return self._classifier.read(request)

    def answer(self, items: Sequence[Item]) -> list[Reply]:
        return self._classifier.answer(items)

    def classify(self, requests: Sequence[Request]) -> list[Any]:
        requests = list(map(self._open, requests))
        images = [hash_image(find_image(request.body)) for request in requests]
        if self._suspects.version != self._version:
            self._version = self._suspects.version
            self._known = {image: rest for image, *rest in self._suspects.read()}
        if self._known.keys().isdisjoint(images):
            return self._run(requests, list(map(self._make_note, images, requests)))
        if len(requests) == 1:
            return [self._answer_suspect(requests[0], images[0])]
        others = [idx for idx, image in enumerate(images) if image not in self._known]
        notes = [self._make_note(images[idx], requests[idx]) for idx in others]
        replies = dict(zip(others, self._run([requests[idx] for idx in others], notes)))
        return [replies.get(idx, ALONE) for idx in range(len(requests))]

    def _open(self, request: Request) -> Request:
        """Opens a body that the front door names, so that the model does not open it too."""
        if self._open_request is None:
            return request
        with contextlib.suppress(Refused):  # the model says what is wrong with it
            return self._open_request(request)
        return request

    def _answer_suspect(self, request: Request, image: int) -> Reply:
        end_s, refused = self._known.get(image, (0.0, ""))
        sha256 = hashlib.sha256(find_image(request.body)).hexdigest()
        is_over = time.monotonic() >= end_s
        if sha256 == refused and not is_over:
            self._count_refused()
            return Refused(ENDS_WORKERS).reply
        time.sleep(PAUSE_S)
        (reply,) = self._run([request], [self._make_note(image, request, sha256)], is_suspect=True)
        if is_over or not refused:
            self._known.pop(image, None)  # until it is in the next death
        return reply

    def _run(
        self, requests: Sequence[Request], notes: Sequence[Note], is_suspect: bool = False
    ) -> list[Reply]:
        if not requests:
            return []
        for request in requests:
            file = request.headers.get(BODY_HEADER)
            if file and self._open_request is not None:
                with contextlib.suppress(OSError):  # the client has left
                    os.chmod(file, IN_WORK)
        with self._noting(notes, is_suspect):
            replies = self._model.classify(requests)
            if is_suspect and replies[0].status == LEFT:  # the lane would have others beside it
                replies = self.answer([self._classifier.read(requests[0])])
            return replies

    @contextlib.contextmanager
    def _noting(self, notes: Sequence[Note], is_alone: bool = False) -> Iterator[None]:
        """Notes what is in work during the block; with `is_alone` nothing else is."""
        places = self._most if is_alone else 1
        # One by one: two that wait for the rest of the places would wait for each other.
        with self._entering:
            for _ in range(places):
                self._places.acquire()
        self._write(notes)
        try:
            yield
        finally:
            self._write(())
            self._places.release(places)

    def _write(self, notes: Sequence[Note]) -> None:
        with self._lock:
            self._in_work[threading.get_ident()] = notes
            self._notes.write([note for some in self._in_work.values() for note in some])

    def _make_note(self, image: int, request: Request, sha256: str = "") -> Note:
        # Without a door a client may have written the header.
        client = request.headers.get(CLIENT_HEADER, "") if self._open_request is not None else ""
        return Note(image, request.id[:64], client.partition(" ")[0][:48], sha256)


def find_image(body: Any) -> memoryview:
    """Returns a body; of a form only the fields, because its boundary is random."""
    begin, end = 0, len(body)
    if body[:2] == b"--":
        begin, end = body.find(b"\r\n\r\n"), body.rfind(b"\r\n--")
    return memoryview(body)[begin:end]


def hash_image(image: memoryview) -> int:
    middle = len(image) // 2
    parts = image[:SAMPLE_BYTES], image[middle : middle + SAMPLE_BYTES], image[-SAMPLE_BYTES:]
    return hash((len(image), *map(bytes, parts)))


def is_crash(status: int) -> bool:
    """Tells whether a worker that ended with this status may have died of an image.

    A worker ends itself with 1. A negative number is a signal.
    """
    if status == -signal.SIGABRT:
        with contextlib.suppress(OSError), open("/proc/self/fd/2", "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
            return NO_MEMORY not in log.read()
    return status > 1 or -status in CRASHES
