"""A supervisor whose workers are numbers, by a clock that is set manually."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from offpath.handler.serving_settings import ServingSettings
from offpath.serving.granian import supervisor
from offpath.serving.granian.plan import Plan, WorkerPlan
from offpath.serving.granian.supervisor import LOOK_S, SILENT_S, Supervisor
from offpath.serving.server.served_model import ServedModel
from tests.support.clock import Clock


def test_only_a_worker_that_was_silent_while_others_ran_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, killed = Clock(), []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    model = ServedModel("a", "1.0", "", ServingSettings(max_workers=3), 0, True)
    workers = [WorkerPlan(model, number, "", None, 1) for number in range(3)]
    running = Supervisor(Plan(tuple(workers), "", 0, False, 1, 1), socket.socket())
    for slot in running._slots:
        slot.pid = 100 + slot.plan.number

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
