"""Asks the server behind a door for its state, for /ping, /metrics and the canaries."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from offpath.errors import ExpectedError
from offpath.serving.front.door import Door
from offpath.serving.front.splits import describe_change, judge_canaries
from offpath.serving.rotation import Rotation
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogLine

READY_CHECK_S = 1.0
# A server that does not say its state in this time is not READY.
READY_TIMEOUT_S = 10.0
# So many workers with a broken model within this time make /ping answer 503.
MAX_SICK = 3
SICK_S = 60.0


class Readiness:
    """The state of the server behind a door, asked for again and again.

    Args:
        show: shows an operator what has happened, and the consequence.
    """

    def __init__(self, door: Door, rotation: Rotation, show: Callable[[str], None]) -> None:
        self._door, self._rotation, self._show = door, rotation, show
        self._next_check = 0.0
        # Why the canaries could not be changed the last time.
        self._failure = ""
        # The server that was asked for its state, and its answer.
        self._asked: tuple[Server, Future[list[ModelStatus] | None]] | None = None
        self._sick_ends: deque[float] = deque(maxlen=MAX_SICK)

    def tell_ready(self) -> None:
        """Asks the server for its state, without waiting: nginx is looked after meanwhile."""
        server = self._rotation.current
        if self._asked is None:
            if time.monotonic() >= self._next_check:
                self._asked = server, _ask(server)
            return
        asked, answer = self._asked
        if not answer.done():
            return
        self._asked = None
        if asked is not server:
            return
        statuses = answer.result() if server.is_running() else None
        ready = {
            (one.model_name, one.model_version) for one in statuses or () if one.ready_workers > 0
        }
        if statuses is not None:
            self._judge_canaries(ready)
        # Requests go to a model's first version, so a READY worker of another is not enough.
        versions = {one.name: one.version for one in reversed(server.plan.models)}
        self._door.set_ready(versions.items() <= ready and not self._is_sick())
        if server.worker_counts is not None:  # otherwise the server counts them
            names = ((one.name, one.version) for one in server.plan.models)
            server.worker_counts.note(names, statuses or ())
        self._door.workers = server.worker_counts.format() if server.worker_counts else []
        self._next_check = time.monotonic() + READY_CHECK_S

    def _judge_canaries(self, ready: set[tuple[str, str]]) -> None:
        """Suspends canaries that answer nothing, and lets those in again that can answer."""
        settings = self._door.settings
        judged = judge_canaries(settings.canary, ready, self._door.replies.only_fails)
        if judged == settings.canary:
            return
        try:
            self._door.change(replace(settings, canary=judged))
        except ExpectedError as error:
            if str(error) != self._failure:
                self._show(f"{error}; the canaries stay as they are")
            self._failure = str(error)
            return
        for change in filter(None, map(describe_change, settings.canary, judged)):
            self._show(change)

    def _is_sick(self) -> bool:
        """Tells whether workers end again and again with a broken model.

        Other deaths do not count, because a client's image could cause them.
        """
        ends = self._sick_ends
        return len(ends) == MAX_SICK and time.monotonic() - ends[0] < SICK_S

    def note_line(self, line: LogLine) -> None:
        # Those of shadows answer nobody, and a canary that fails is suspended.
        tried = [f"{s.model}_{s.version}" for s in self._door.settings.splits]
        if line.is_of_sick_worker and line.model not in tried:
            self._sick_ends.append(time.monotonic())
            if self._is_sick():
                self._show(
                    f"{MAX_SICK} workers ended with a broken model within {SICK_S:g} s; "
                    "/ping answers 503 until that has stopped"
                )


def _ask(server: Server) -> Future[list[ModelStatus] | None]:
    """Returns what `Server.describe_models` will return.

    The thread is a daemon, because Python waits for all others when it ends, and for ever for that
    of a pool if a signal interrupted its start.
    """
    answer = Future[list[ModelStatus] | None]()

    def run() -> None:
        try:
            answer.set_result(server.describe_models(READY_TIMEOUT_S))
        except Exception as error:  # raised again where the answer is read
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
