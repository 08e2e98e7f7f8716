"""Images in the deaths of workers, without a server."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from offpath.handler.contract import LEFT, Item, Reply, Request
from offpath.serving.granian.suspects import (
    MAX_IMAGES,
    REFUSED_S,
    SAMPLE_BYTES,
    Note,
    SharedNotes,
    Suspects,
    WatchedModel,
    is_crash,
)
from tests.support.clock import Clock

BATCH = 8
POISON = b"poison" + bytes(8 * SAMPLE_BYTES)
COSTLY = b"costly"


class Host:
    """A supervisor's part of a worker that may die."""

    def __init__(self, clock: Clock, in_flight: int = 1) -> None:
        self.batches: list[list[bytes]] = []
        self.beside = [b"beside"]
        self.refused: list[int] = []
        self.notes, self.suspects = SharedNotes(BATCH), Suspects(clock)
        model = SimpleNamespace(
            **{"classify": self._answer, "read": self._read, "answer": self._predict},
            **{"health": None, "close": None, "deadline_ms": 0, "in_flight": in_flight},
        )
        self.model = WatchedModel(
            model, self.notes, self.suspects.shared, lambda: self.refused.append(1), None
        )

    def _answer(self, requests: Sequence[Request]) -> list[Reply]:
        self.batches.append([request.body for request in requests])
        self.last = self.notes.read()
        return [Reply(LEFT if one.body == COSTLY else 200, {}, b"{}") for one in requests]

    def _read(self, request: Request) -> Item:
        with ThreadPoolExecutor(1) as batches:
            for body in self.beside:
                batches.submit(self.ask, body).result()
        return Item(request)

    def _predict(self, items: Sequence[Item]) -> list[Reply]:
        return [Reply(200, {}, b"{}") for _ in items]

    def ask(self, *bodies: bytes) -> list[int | None]:
        """Returns the statuses; None for what must be asked again alone."""
        replies = self.model.classify([Request(body, "id") for body in bodies])
        return [reply and reply.status for reply in replies]

    def die(self, *bodies: bytes) -> None:
        """Counts the death of a worker that worked on these."""
        self.ask(*bodies)
        self.suspects.count_death([Note(*one) for one in self.last])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    fake = SimpleNamespace(monotonic=clock, sleep=lambda _: None)
    monkeypatch.setattr("offpath.serving.granian.suspects.time", fake)
    return clock


@pytest.fixture
def host(clock: Clock) -> Host:
    return Host(clock)


def test_only_an_image_that_ends_a_worker_alone_is_refused_and_for_an_hour(
    host: Host, clock: Clock
) -> None:
    for other in (b"a", b"b"):
        host.die(POISON, other)
    # `a` and `b` were in one death each.
    assert host.ask(b"a", POISON, b"b") == [200, None, 200]
    assert host.batches[-1] == [b"a", b"b"]
    host.die(POISON)
    assert host.batches[-1] == [POISON]
    batches = len(host.batches)
    assert host.ask(POISON) == [422] and host.refused == [1]
    assert len(host.batches) == batches
    clock.pass_s(REFUSED_S)
    assert host.ask(POISON) == [200]


def test_a_suspect_that_survives_alone_is_like_others_until_the_next_death(host: Host) -> None:
    host.die(POISON, b"a")
    host.die(POISON, b"b")
    assert host.ask(POISON) == [200]
    assert host.ask(POISON, b"a") == [200, 200]
    host.die(POISON, b"c")
    assert host.ask(POISON, b"a") == [None, 200]


def test_a_costly_image_is_counted_with_the_batch_beside_it_and_answered_alone(
    host: Host,
) -> None:
    assert host.ask(COSTLY, b"a") == [LEFT, 200]
    for _ in range(2):
        host.model.read(Request(COSTLY, "id"))  # in the lane, beside a batch
        host.suspects.count_death([Note(*one) for one in host.last])
    assert len(host.last) == 2 and not host.notes.read()
    host.beside = []
    assert host.ask(COSTLY, b"a") == [None, 200]
    assert host.ask(COSTLY) == [200]


def test_two_suspects_are_not_in_work_at_once(clock: Clock) -> None:
    """The death of one would count for the other too, and refuse it."""
    host = Host(clock, in_flight=2)
    for _ in range(2):
        host.die(POISON, b"a")
    together = threading.Barrier(2)

    def answer(requests: Sequence[Request]) -> list[Reply]:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.5)
        return [Reply(len(host.notes.read()), {}, b"") for _ in requests]

    host.model._model.classify = answer
    with ThreadPoolExecutor(2) as batches:
        found = list(batches.map(host.ask, (POISON, b"a")))
    assert found == [[1], [1]]


def test_an_image_with_the_same_sample_is_not_refused_for_another_ones_deaths(host: Host) -> None:
    for _ in range(3):
        host.die(POISON)
    assert host.ask(POISON) == [422]
    same = bytearray(POISON)
    same[2 * SAMPLE_BYTES] = 1
    assert host.ask(bytes(same)) == [200]


def test_the_memory_of_deaths_is_bounded(host: Host) -> None:
    for number in range(MAX_IMAGES + 1):
        body = str(number).encode()
        for _ in range(2):
            host.die(body)
    known = host.suspects.shared.read()
    assert len(known) == MAX_IMAGES
    assert host.ask(b"0", b"x") == [200, 200] and host.ask(body, b"x") == [None, 200]


@pytest.mark.parametrize(
    ("status", "is_counted"),
    [
        pytest.param(-signal.SIGSEGV, True, id="segmentation-fault"),
        pytest.param(-signal.SIGABRT, True, id="abort"),
        pytest.param(-signal.SIGKILL, False, id="killed-or-out-of-memory"),
        pytest.param(-signal.SIGTERM, False, id="terminated"),
        pytest.param(1, False, id="replaced"),
        pytest.param(70, True, id="a-library-ended-it"),
    ],
)
def test_which_deaths_an_image_may_have_caused(status: int, is_counted: bool) -> None:
    assert is_crash(status) == is_counted
