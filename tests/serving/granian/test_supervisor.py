"""A supervisor whose workers are numbers, by a clock that is set manually."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import os
import signal
import socket
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from offpath.handler.serving_settings import ServingSettings
from offpath.serving.granian import supervisor
from offpath.serving.granian.plan import Plan, WorkerPlan
from offpath.serving.granian.supervisor import LOOK_S, SILENT_S, Supervisor, send
from offpath.serving.granian.suspects import Note
from offpath.serving.granian.worker import insist
from offpath.serving.process import resources
from offpath.serving.server.served_model import ServedModel
from tests.guarantees import guarantee
from tests.support.clock import Clock
from tests.support.eventually import MAX_S


def make_supervisor(monkeypatch: pytest.MonkeyPatch, workers: int) -> Supervisor:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    model = ServedModel("a", "1.0", "", ServingSettings(max_workers=workers), 0, True)
    plans = [WorkerPlan(model, number, "", 0, None, 1) for number in range(workers)]
    return Supervisor(Plan(tuple(plans), "", 0, False, 1, 1, 503), socket.socket())


@guarantee(
    "Workers are stopped",
    "serving/granian/supervisor.py",
    "elif slot.pid and now_s > self.deadlines[number]:",
    "elif False:",
)
def test_only_a_worker_that_was_silent_while_others_ran_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, killed = Clock(), []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    running = make_supervisor(monkeypatch, 3)
    for slot in running._slots:
        slot.pid = 100 + slot.worker.number

    def look(seconds: float, *beating: int) -> list[int]:
        """Returns which workers are killed, where some beat."""
        killed.clear()
        for _ in range(round(seconds / LOOK_S)):
            clock.pass_s(LOOK_S)
            for number in beating:
                running.beat(number)
            running._kill_late()
        return sorted(set(killed))

    # The third one is still loading.
    assert look(2 * SILENT_S, 0, 1) == []
    assert look(SILENT_S, 0) == []
    # The whole machine is stopped, and this process runs first.
    clock.pass_s(3600)
    running._kill_late()
    assert killed == []
    assert look(2 * LOOK_S, 0) == [101]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_worker_that_cannot_be_started_and_a_full_disk_end_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    running, tries = make_supervisor(monkeypatch, 1), []

    def fork() -> int:
        tries.append(1)
        running._is_ending = len(tries) == 3
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fork", fork)
    monkeypatch.setattr(resources, "PAUSE_S", 0)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert running.run() is None
        with contextlib.suppress(OSError):
            full.close()
    assert len(tries) == 3
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("code", "batches", "paused", "how"),
    [
        pytest.param(signal.SIGSEGV, 2, False, "by SIGSEGV", id="an-image-ended-a-good-worker"),
        pytest.param(signal.SIGSEGV, 1, True, "by SIGSEGV", id="its-first-batch-ended-it"),
        pytest.param(signal.SIGKILL, 2, True, "by SIGKILL", id="killed"),
        pytest.param(signal.SIGRTMIN + 6, 2, True, "by signal 40", id="a-signal-without-a-name"),
    ],
)
def test_no_pause_follows_a_crash_that_an_image_may_have_caused(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: int,
    batches: int,
    paused: bool,
    how: str,
) -> None:
    running = make_supervisor(monkeypatch, 1)
    (slot,) = running._slots
    for _ in range(3):
        slot.notes.write([])
        slot.noted, slot.began_s = slot.notes.version, 1e12
        slot.pid = running._children.fork(slot)
        if not slot.pid:
            faulthandler.disable()
            os.kill(os.getpid(), code)
        for number in range(batches):
            slot.notes.write([Note(number, f"id-{number}", "192.0.2.1")])
        running._note_end(slot)
    said = capfd.readouterr().err
    assert said.count(f"ended {how} after") == 3 and said.count("starting another in 1 s") == (
        2 if paused else 0
    )
    assert said.count(f"worked on id-{batches - 1} of 192.0.2.1, image 0") == 3
    assert bool(running.suspects.shared.read()) == (code == signal.SIGSEGV)


def test_a_report_that_had_no_room_is_sent_again() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while send(theirs, 0, series=["x" * 10_000]):
        pass

    async def tell() -> None:
        asked = asyncio.ensure_future(insist(partial(send, theirs, 0, ready={})))
        await asyncio.sleep(0)
        ours.setblocking(False)
        received = b""
        while b"ready" not in received:
            try:
                received = ours.recv(1 << 16)
            except BlockingIOError:
                await asyncio.sleep(0.01)
        await asked

    asyncio.run(asyncio.wait_for(tell(), MAX_S))
