"""Locust's FastHttpUser in a process of its own; `generators.py` is the other end.

It reads a load (JSON) from stdin and writes events (JSON lines) to stdout. It needs its own process
because gevent patches the standard library, and because its CPU is measured apart. Measured: 0.6 ms
of CPU per request of 1.2 MB (the kernel's copies are 0.35 ms of it), 0.2 ms per request of 55 kB.
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
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from urllib.parse import urlsplit  # noqa: E402

import gevent  # noqa: E402
from gevent.queue import Queue  # type: ignore[import-untyped]  # noqa: E402
from locust import FastHttpUser, task  # noqa: E402
from locust.env import Environment  # noqa: E402

PROGRESS_S = 0.5
POLL_S = 0.02
# A dead server refuses at once; without a pause the clients would spin on it.
PAUSE_AFTER_NO_REPLY_S = 0.05
# A request that is unanswered for this time after the window counts as no reply.
DRAIN_S = 30.0


@dataclass(frozen=True)
class Arrival:
    """A request's due time (`time.perf_counter`), and whether it is inside the window."""

    due_s: float
    is_counted: bool


class Arrivals:
    """Poisson arrivals at a mean rate; clients take them from `queue` in order."""

    def __init__(self, rate: float) -> None:
        self.queue: Queue = Queue()
        self.counted = 0
        self.is_over = False
        self._rate = rate
        self._opens_s = float("inf")
        self._closes_s = float("inf")

    def open(self, seconds: float) -> None:
        self._opens_s = time.perf_counter()
        self._closes_s = self._opens_s + seconds

    def run(self) -> None:
        # Exponentially distributed seconds between arrivals, alike in every run.
        source, due_s = random.Random(0), time.perf_counter()
        while not self.is_over:
            due_s += source.expovariate(self._rate)
            # Also when late: others must run.
            gevent.sleep(max(0.0, due_s - time.perf_counter()))
            if due_s >= self._closes_s:
                break
            is_counted = due_s >= self._opens_s
            self.queue.put(Arrival(due_s, is_counted))
            self.counted += is_counted
        self.is_over = True


class Recorder:
    """Counts replies: in closed loop those inside the window, in open loop those due in it."""

    def __init__(self, give_up_s: float | None) -> None:
        self._give_up_s = give_up_s
        self.is_open = False
        self.statuses: Counter[str] = Counter()
        self.latencies_ms: list[float] = []
        self.last_reply_s = 0.0

    def on_request(
        self,
        response_time: float,
        response: Any,
        exception: Any,
        context: dict[str, Arrival],
        **_: Any,
    ) -> None:
        """Takes Locust's request event; response_time in ms, until the body was read."""
        now_s = time.perf_counter()
        arrival = context.get("arrival")
        if not (self.is_open if arrival is None else arrival.is_counted):
            return
        if arrival is not None:
            response_time = 1000 * (now_s - arrival.due_s)
        self.last_reply_s = now_s
        status = getattr(response, "status_code", 0) or 0
        if self._give_up_s and response_time > 1000 * self._give_up_s:
            status = 0  # too late: its client has waited in the generator's queue too
        self.statuses[str(status) if status else "none"] += 1
        if status == 200 and exception is None:
            self.latencies_ms.append(round(response_time, 3))


def make_user(load: dict[str, Any], arrivals: Arrivals | None) -> type[FastHttpUser]:
    """Returns the user class; all clients post the photographs in turn from one sequence."""
    bodies = [Path(path).read_bytes() for path in load["paths"]]
    random.Random(0).shuffle(bodies)
    sequence = itertools.cycle(itertools.product(bodies, load["url_paths"]))
    url = urlsplit(load["url"])
    headers = load["headers"]

    class LoadUser(FastHttpUser):  # type: ignore[misc]
        host = f"{url.scheme}://{url.netloc}"
        network_timeout = connection_timeout = load["give_up_s"] or load["timeout_s"]
        # A retry would hide a failure.
        max_retries = 0

        @task  # type: ignore[untyped-decorator]
        def post(self) -> None:
            context = {"arrival": arrivals.queue.get()} if arrivals else {}
            # locust: its annotation forgets bytes, which it documents.
            body: Any
            body, path = next(sequence)
            response = self.client.post(path, data=body, headers=headers, context=context)
            if not response.status_code:
                gevent.sleep(PAUSE_AFTER_NO_REPLY_S)

    return LoadUser


def emit(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def watch(recorder: Recorder, arrivals: Arrivals | None, load: dict[str, Any]) -> float:
    """Waits until the window is over, and reports the replies meanwhile; returns its seconds.

    In open loop it is over when each request that was due in it is answered.
    """
    seconds, start_s = load["seconds"], time.perf_counter()
    next_s, is_over = start_s + PROGRESS_S, False
    if arrivals is None:
        recorder.is_open = True
    else:
        arrivals.open(seconds)
    while not is_over:
        now_s, replies = time.perf_counter(), recorder.statuses.total()
        elapsed_s = now_s - start_s
        if now_s >= next_s:
            emit(event="progress", replies=replies, elapsed_s=elapsed_s)
            next_s += PROGRESS_S
        if arrivals is not None:
            is_answered = arrivals.is_over and replies >= arrivals.counted
            is_over = is_answered or elapsed_s >= seconds + DRAIN_S
        elif elapsed_s >= seconds:
            is_over = replies >= load["min_replies"] or elapsed_s >= load["longest_s"]
        if not is_over:
            # In closed loop, wakes up at the window's end.
            left_s = seconds - elapsed_s
            gevent.sleep(min(POLL_S, left_s) if left_s > 0 else POLL_S)
    recorder.is_open = False
    if arrivals is None:
        return time.perf_counter() - start_s
    missing = arrivals.counted - recorder.statuses.total()
    if missing:
        recorder.statuses["none"] += missing
        recorder.last_reply_s = time.perf_counter()
    if load["give_up_s"]:
        return float(seconds)  # no queue is left behind: answered in time, per second of the window
    return max(float(seconds), recorder.last_reply_s - start_s)


def main() -> None:
    load = json.load(sys.stdin)
    arrivals = None if load["rate"] is None else Arrivals(load["rate"])
    recorder = Recorder(load["give_up_s"])
    environment = Environment(user_classes=[make_user(load, arrivals)])
    environment.events.request.add_listener(recorder.on_request)
    runner = environment.create_local_runner()
    runner.start(load["clients"], spawn_rate=1000)
    if arrivals is not None:
        gevent.spawn(arrivals.run)
    gevent.sleep(load["warm_up_s"])
    emit(event="window")
    cpu = time.process_time()
    elapsed_s = watch(recorder, arrivals, load)
    emit(
        event="result",
        elapsed_s=elapsed_s,
        cpu_s=time.process_time() - cpu,
        statuses=dict(recorder.statuses),
        latencies_ms=recorder.latencies_ms,
    )
    # runner.quit() would wait for requests in flight, which a dead server never answers.
    os._exit(0)


if __name__ == "__main__":
    main()
