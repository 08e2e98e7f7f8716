"""Workers that end, as management shows them at one moment and at the next."""

from __future__ import annotations

from dataclasses import replace

from offpath.serving.server.management import ModelStatus
from offpath.serving.server.worker_counts import WorkerCounts

STATUS = ModelStatus("echo", "1.0", "echo.mar", 2, 2, 8, 1, 60, 60, ("READY",) * 2, (1, 2))
ECHO = {("echo", "1.0")}


def read(counts: WorkerCounts) -> list[str]:
    """Returns how many are READY and wanted, and how many have ended where that is known."""
    return [line.rsplit(" ", 1)[1] for line in counts.format()]


def test_a_worker_whose_process_is_gone_has_ended() -> None:
    counts = WorkerCounts()
    counts.note(ECHO, [STATUS])
    assert read(counts) == ["2", "2", "0"]
    dead = replace(STATUS, worker_states=("READY", "UNLOADED"), worker_pids=(1, -1))
    for _ in range(2):
        counts.note(ECHO, [dead])
        assert read(counts) == ["1", "2", "1"]
    counts.note(ECHO, [replace(STATUS, worker_pids=(3, 4))])
    assert read(counts) == ["2", "2", "2"]
    # Nothing is known while management does not answer.
    counts.note(ECHO, [])
    assert read(counts) == ["0", "2", "2"]


def test_a_version_that_never_had_a_status_wants_a_worker() -> None:
    counts = WorkerCounts()
    counts.note(ECHO, [])
    assert read(counts) == ["0", "1"]
