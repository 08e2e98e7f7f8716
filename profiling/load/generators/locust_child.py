"""Locust's FastHttpUser in a process of its own: reads a plan (JSON) from stdin, writes events
(JSON lines) to stdout. `locust_adapter.py` is the other end.

Own process: gevent patches the standard library, and the generator's CPU must be told apart.
Measured: 0.6 ms of CPU a request of 1.2 MB (0.35 of them are the kernel's copies), 0.2 ms of 55 kB.
"""

from __future__ import annotations

from gevent import monkey  # type: ignore[import-untyped]

monkey.patch_all()

import itertools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from urllib.parse import urlsplit  # noqa: E402

import gevent  # noqa: E402
from locust import FastHttpUser, task  # noqa: E402
from locust.env import Environment  # noqa: E402

from offpath.profiling.load.generators.arrivals import (  # noqa: E402
    DRAIN_S,
    Arrival,
    Arrivals,
)

PROGRESS_S = 0.5
POLL_S = 0.02
# A dead server refuses at once: without a pause the clients would spin on it.
PAUSE_AFTER_NO_REPLY_S = 0.05


class Recorder:
    """Counts replies: in closed loop while the window is open, in open loop those due in it."""

    def __init__(self, limit: int | None) -> None:
        self.is_open = False
        self.statuses: Counter[str] = Counter()
        self.latencies_ms: list[float] = []
        self.last_reply_s = 0.0
        self._limit = limit

    def on_request(
        self,
        response_time: float,
        response: Any,
        exception: Any,
        context: dict[str, Arrival],
        **_: Any,
    ) -> None:
        """Locust's request event; response_time in ms, until the body has been read."""
        now_s = time.perf_counter()
        arrival = context.get("arrival")
        if not (self.is_open if arrival is None else arrival.is_counted):
            return
        if arrival is not None:
            response_time = 1000 * (now_s - arrival.due_s)
        self.last_reply_s = now_s
        status = getattr(response, "status_code", 0) or 0
        self.statuses[str(status) if status else "none"] += 1
        if status == 200 and exception is None:
            self.latencies_ms.append(round(response_time, 3))
        if self._limit is not None and self.statuses.total() >= self._limit:
            self.is_open = False


def make_user(plan: dict[str, Any], arrivals: Arrivals | None) -> type[FastHttpUser]:
    """The user class: posts the photographs in turn, all clients from one sequence."""
    bodies = [Path(path).read_bytes() for path in plan["paths"]]
    random.Random(plan["seed"]).shuffle(bodies)
    sequence = itertools.cycle(bodies)
    url = urlsplit(plan["url"])
    headers = plan["headers"]

    class Client(FastHttpUser):  # type: ignore[misc]
        host = f"{url.scheme}://{url.netloc}"
        network_timeout = connection_timeout = plan["timeout_s"]
        # A retry would hide a failure.
        max_retries = 0

        @task  # type: ignore[untyped-decorator]
        def post(self) -> None:
            context = {"arrival": arrivals.queue.get()} if arrivals else {}
            # locust: its annotation forgets bytes, which it documents.
            body: Any = next(sequence)
            response = self.client.post(
                url.path, data=body, headers=headers, context=context
            )
            if not response.status_code:
                gevent.sleep(PAUSE_AFTER_NO_REPLY_S)

    return Client


def emit(**event: Any) -> None:
    """One event line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Progress:
    """Tells the other end how many replies there are, twice a second."""

    def __init__(self, recorder: Recorder, start_s: float) -> None:
        self._recorder, self._start_s = recorder, start_s
        self._next_s = start_s + PROGRESS_S

    def tell(self) -> float:
        """Sends the count when it is time; returns the seconds since the window began."""
        now_s = time.perf_counter()
        elapsed_s = now_s - self._start_s
        if now_s >= self._next_s:
            replies = self._recorder.statuses.total()
            emit(event="progress", replies=replies, elapsed_s=elapsed_s)
            self._next_s += PROGRESS_S
        return elapsed_s


def watch_closed_loop(recorder: Recorder, plan: dict[str, Any]) -> float:
    """Keeps the window open until its time or its number of replies is over; returns its length."""
    start_s = time.perf_counter()
    seconds = plan["seconds"]
    progress = Progress(recorder, start_s)
    recorder.is_open = True
    while recorder.is_open:
        elapsed_s = progress.tell()
        left_s = POLL_S if seconds is None else seconds - elapsed_s
        if left_s <= 0:
            enough = recorder.statuses.total() >= plan["min_replies"]
            if enough or elapsed_s >= plan["longest_s"]:
                break
            left_s = POLL_S
        gevent.sleep(min(POLL_S, left_s))
    recorder.is_open = False
    return time.perf_counter() - start_s


def watch_open_loop(
    recorder: Recorder, arrivals: Arrivals, plan: dict[str, Any]
) -> float:
    """Waits until all that was due in the window is answered; returns the time that took."""
    start_s = time.perf_counter()
    progress = Progress(recorder, start_s)
    arrivals.open(plan["seconds"], plan["requests"])
    over_s = None
    while not arrivals.is_over or recorder.statuses.total() < arrivals.counted:
        progress.tell()
        now_s = time.perf_counter()
        if arrivals.is_over:
            over_s = over_s or now_s
            if now_s - over_s >= DRAIN_S:
                break
        gevent.sleep(POLL_S)
    missing = arrivals.counted - recorder.statuses.total()
    if missing:
        recorder.statuses["none"] += missing
        recorder.last_reply_s = time.perf_counter()
    return max(plan["seconds"] or 0.0, recorder.last_reply_s - start_s)


def main() -> None:
    """Runs the plan on stdin."""
    plan = json.load(sys.stdin)
    arrivals = None if plan["rate"] is None else Arrivals(plan["rate"], plan["seed"])
    # In open loop the arrivals are limited, and all of them are waited for.
    recorder = Recorder(None if arrivals else plan["requests"])
    environment = Environment(user_classes=[make_user(plan, arrivals)])
    environment.events.request.add_listener(recorder.on_request)
    runner = environment.create_local_runner()
    runner.start(plan["clients"], spawn_rate=1000)
    if arrivals is not None:
        gevent.spawn(arrivals.run)
    gevent.sleep(plan["warm_up_s"])
    emit(event="window")
    cpu = time.process_time()
    if arrivals is None:
        elapsed_s = watch_closed_loop(recorder, plan)
    else:
        elapsed_s = watch_open_loop(recorder, arrivals, plan)
    emit(
        event="result",
        elapsed_s=elapsed_s,
        cpu_s=time.process_time() - cpu,
        statuses=dict(recorder.statuses),
        latencies_ms=recorder.latencies_ms,
    )
    # Not runner.quit(): it would wait for requests in flight, of which a dead server never answers.
    os._exit(0)


if __name__ == "__main__":
    main()
