"""Forks Granian's workers from one process that has imported torch, and replaces those that end.

This process has no threads, so that it can fork at any time. It keeps each worker's listener. While
a worker is replaced, the path of its Unix socket leads to another worker of its model for the front
door. Without another one, or without the door, requests wait in the kernel.

usage: python supervisor.py --model-store STORE --run FOLDER [--port PORT] --reports FD
STORE, FOLDER and PORT are for `offpath check`, which finds this process. The plan comes as a
message.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

# Replaces this script's folder, whose module names could hide others.
sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))

from offpath.serving.fork.children import (  # noqa: E402
    Children,
    describe_end,
    import_shared,
    import_torchserve,
    share_memory,
)
from offpath.serving.granian.balance import share_numbers  # noqa: E402
from offpath.serving.granian.plan import FIXED, Plan, WorkerPlan, read_plan  # noqa: E402
from offpath.serving.granian.suspects import Note, SharedNotes, Suspects, is_crash  # noqa: E402
from offpath.serving.process.resources import awaiting_resources  # noqa: E402

# Seconds before a worker is started again, by the number of its quick ends in a row.
PAUSES_S = (0, 1, 1, 2, 3, 5, 8, 13)
# An end after this many seconds is not counted as quick.
STABLE_S = 60.0
LOOK_S = 1.0
# The same while a path leads to another worker.
LOOK_SOON_S = 0.02
# A worker whose event loop does nothing for this many seconds is killed.
SILENT_S = 10.0
BACKLOG = 1024
MAX_MESSAGE_BYTES = 1 << 20


@dataclass
class Slot:
    """The place of one worker; times are by `time.monotonic`.

    Attributes:
        notes: the batch that its worker works on.
        listener: its socket, which outlives it; None for a port of a worker that ended too often.
        target: the slot whose worker its path leads to; None while the path leads nowhere.
        pid: 0 while no worker runs.
        began_s, start_s: times of its last and of its next start.
        noted: `version` of the notes at its last start.
        quick_ends: times in a row that it ended soon after its start.
    """

    worker: WorkerPlan
    notes: SharedNotes
    listener: socket.socket | None = None
    pid: int = 0
    began_s: float = 0.0
    start_s: float = 0.0
    noted: int = 0
    quick_ends: int = 0
    target: Slot | None = None

    def __post_init__(self) -> None:
        self.target = self


class Supervisor:
    """Starts the workers and looks after them until SIGTERM.

    Attributes:
        means: mean number of requests at once, by slot (balance.py). It is infinite for a slot
            without a READY worker, so that none sends it clients.
        deadlines: time by `time.monotonic` at which a worker is killed. A worker that is loading
            has its startupTimeout, and one that is READY moves its deadline every second. It
            could not end itself by a timer, because a stopped process gets no signal.
    """

    def __init__(self, plan: Plan, reports: socket.socket) -> None:
        self.plan = plan
        self._slots = [
            # Two batches may be in work, and a costly image.
            Slot(one, SharedNotes(2 * one.model.settings.batch_size + 1))
            for one in plan.workers
        ]
        self.suspects = Suspects()
        self._reports = reports
        self.means = share_numbers(len(self._slots))
        self.deadlines = share_numbers(len(self._slots))
        self._looked_s = time.monotonic()
        self._children = Children()
        self._is_ending = False
        signal.signal(signal.SIGTERM, self._end)

    def run(self) -> Slot | None:
        """Looks after the workers.

        Returns:
            in a forked worker, its slot; in the supervisor, None when all workers have ended.
        """
        while not self._is_ending or self._children:
            if not self._is_ending:
                self._kill_late()
                self._point_paths()
            for slot in self._slots:
                is_due = not slot.pid and time.monotonic() >= slot.start_s
                with awaiting_resources(log):
                    if is_due and not self._is_ending and self._fork(slot):
                        return slot
            is_settled = all(slot.target is slot for slot in self._slots)
            for key, _ in self._children.selector.select(LOOK_S if is_settled else LOOK_SOON_S):
                self._note_end(key.data)
        return None

    def beat(self, number: int) -> None:
        """Moves the deadline of a READY worker, which calls this in its event loop."""
        self.deadlines[number] = time.monotonic() + SILENT_S

    def open_listener(self, worker: WorkerPlan) -> socket.socket:
        """Listens on a worker's Unix socket, or with others at the port."""
        if worker.socket is not None:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(worker.socket)
            os.link(worker.socket, worker.socket + FIXED)
        else:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Each worker has its own queue, and the kernel spreads connections over them.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((self.plan.host, self.plan.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def _kill_late(self) -> None:
        now_s = time.monotonic()
        slept_s, self._looked_s = now_s - self._looked_s, now_s
        for slot in self._slots:
            number = slot.worker.number
            if slept_s > 2 * LOOK_S:
                # The whole machine or container may have been stopped, and workers with it.
                self.deadlines[number] += slept_s
            elif slot.pid and now_s > self.deadlines[number]:
                os.kill(slot.pid, signal.SIGKILL)

    def _fork(self, slot: Slot) -> bool:
        """Starts a worker; True in the worker."""
        if slot.listener is None and slot.quick_ends < 2:
            slot.listener = self.open_listener(slot.worker)
        slot.notes.write([])
        slot.began_s, slot.noted = time.monotonic(), slot.notes.version
        limit_s = slot.worker.model.settings.startup_timeout_s
        self.deadlines[slot.worker.number] = slot.began_s + limit_s
        slot.pid = self._children.fork(slot)
        if slot.pid == 0:
            for other in self._slots:
                if other is not slot and other.listener is not None:
                    other.listener.close()
        elif self._is_ending:  # since the caller looked
            self._children.terminate()
        return slot.pid == 0

    def _point_paths(self) -> None:
        """Points each worker's path to it, or to another of its model while it is replaced."""
        for slot in self._slots:
            target = self._choose(slot)
            if target is slot.target or slot.worker.socket is None:
                continue
            with contextlib.suppress(OSError):  # the next call tries again
                point_path(slot.worker.socket, None if target is None else target.worker.socket)
                slot.target = target

    def _choose(self, slot: Slot) -> Slot | None:
        number = slot.worker.number
        if slot.quick_ends == 0 or math.isfinite(self.means[number]):
            return slot
        others = self._slots[number + 1 :] + self._slots[:number]
        for other in others:
            is_ready = math.isfinite(self.means[other.worker.number])
            if is_ready and other.worker.model == slot.worker.model:
                return other
        # Requests wait for a worker that ended once. One that ends again and again refuses them.
        return slot if slot.quick_ends == 1 else None

    def _note_end(self, slot: Slot) -> None:
        """Notes the end of a worker and sets the time of the next start."""
        code = self._children.note_end(slot.pid)
        ran_s = time.monotonic() - slot.began_s
        batch = [Note(*one) for one in slot.notes.read()]
        is_by_image = bool(batch) and is_crash(code)
        if is_by_image:  # before anybody hears of the end, and sends the image again
            self.suspects.count_death(batch)
        # A worker that had answered batches was well. The next one starts at once, because pauses
        # would let all clients wait for the image of one.
        was_well = slot.notes.version > slot.noted + 1
        is_quick = ran_s < STABLE_S and not (is_by_image and was_well)
        slot.quick_ends = slot.quick_ends + 1 if is_quick else 1
        pause_s = PAUSES_S[min(slot.quick_ends, len(PAUSES_S)) - 1]
        slot.pid, slot.start_s = 0, time.monotonic() + pause_s
        number = slot.worker.number
        self.means[number] = math.inf
        if self._is_ending:
            return
        if pause_s and slot.listener is not None and slot.worker.socket is None:
            # It is not coming back soon: its requests are refused, so that others get them.
            slot.listener.close()
            slot.listener = None
        how = describe_end(code)
        if code < 0 and time.monotonic() > self.deadlines[number]:
            how = "because it took too long"
        send(self._reports, number, ended=how)
        log(
            f"worker {number} of {slot.worker.model.name} ended {how} after {ran_s:.0f} s; "
            f"starting another{f' in {pause_s} s' if pause_s else ''}"
        )
        for one in batch:
            log(
                f"worker {number} worked on {one.request_id} of {one.client or 'a client'}, image "
                f"{one.image % (1 << 64):016x} {one.sha256}"
            )

    def _end(self, *_: object) -> None:
        self._is_ending = True
        for slot in self._slots:
            if slot.listener is not None:
                slot.listener.close()
        self._children.terminate()


def point_path(path: str, socket: str | None) -> None:
    """Points a path to the listener of a worker's socket; with None, connections are refused."""
    if socket is None:
        os.unlink(path)
    else:
        new = f"{path}.new"
        os.link(socket + FIXED, new)
        os.replace(new, path)


def path_leads_to(socket: str | None) -> bool:
    """Tells if the path of a worker's socket, which may have none, leads to that worker."""
    try:
        return socket is None or os.path.samefile(socket, socket + FIXED)
    except FileNotFoundError:
        return False


def send(reports: socket.socket, slot: int, **report: Any) -> bool:
    """Sends a report to `offpath serve`; returns False if it has no room at the moment."""
    message = json.dumps({"slot": slot, "pid": os.getpid(), **report}).encode()
    try:
        reports.send(message, socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def log(message: str) -> None:
    """Writes an error to the log, in the layout that server_log.py reads."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    with contextlib.suppress(OSError):  # a full disk must not end the workers
        print(f"{now} [ERROR] supervisor granian - {message}", file=sys.stderr, flush=True)


def main(reports: socket.socket) -> None:
    """Imports, receives the plan, and supervises; forked workers continue in worker.py."""
    import_shared()
    # These have no threads before the first request either.
    import granian.server.embed  # noqa: F401
    import orjson  # noqa: F401
    import simplejpeg  # noqa: F401
    import uvloop  # noqa: F401

    from offpath.serving.granian.worker import run_worker

    plan = read_plan(reports.recv(MAX_MESSAGE_BYTES))
    if any(worker.model.foreign_handler for worker in plan.workers):
        import_torchserve()
    share_memory()
    supervisor = Supervisor(plan, reports)
    slot = supervisor.run()
    if slot is not None:
        run_worker(slot.worker, slot.listener, reports, supervisor, slot.notes)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[-1])))
