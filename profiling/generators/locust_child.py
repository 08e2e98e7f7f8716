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

PROGRESS_S = 0.5
# A dead server refuses at once: without a pause the clients would spin on it.
PAUSE_AFTER_NO_REPLY_S = 0.05


class Recorder:
    """Counts replies while the window is open."""

    def __init__(self) -> None:
        self.is_open = False
        self.statuses: Counter[str] = Counter()
        self.latencies_ms: list[float] = []
        self.limit: int | None = None

    def on_request(
        self, response_time: float, response: Any, exception: Any, **_: Any
    ) -> None:
        """Locust's request event; response_time in ms, until the body has been read."""
        if not self.is_open:
            return
        status = getattr(response, "status_code", 0) or 0
        self.statuses[str(status) if status else "none"] += 1
        if status == 200 and exception is None:
            self.latencies_ms.append(round(response_time, 3))
        if self.limit is not None and self.statuses.total() >= self.limit:
            self.is_open = False


def make_user(plan: dict[str, Any]) -> type[FastHttpUser]:
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
            # locust: its annotation forgets bytes, which it documents.
            body: Any = next(sequence)
            response = self.client.post(url.path, data=body, headers=headers)
            if not response.status_code:
                gevent.sleep(PAUSE_AFTER_NO_REPLY_S)

    return Client


def emit(**event: Any) -> None:
    """One event line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def watch_window(recorder: Recorder, seconds: float | None) -> float:
    """Keeps the window open until its time or its number of replies is over; returns its length."""
    start = time.perf_counter()
    next_progress_s = PROGRESS_S
    while recorder.is_open:
        elapsed_s = time.perf_counter() - start
        if seconds is not None and elapsed_s >= seconds:
            break
        if elapsed_s >= next_progress_s:
            emit(
                event="progress", replies=recorder.statuses.total(), elapsed_s=elapsed_s
            )
            next_progress_s += PROGRESS_S
        left_s = PROGRESS_S if seconds is None else seconds - elapsed_s
        gevent.sleep(min(0.02, left_s))
    recorder.is_open = False
    return time.perf_counter() - start


def main() -> None:
    """Runs the plan on stdin."""
    plan = json.load(sys.stdin)
    recorder = Recorder()
    recorder.limit = plan["requests"]
    environment = Environment(user_classes=[make_user(plan)])
    environment.events.request.add_listener(recorder.on_request)
    runner = environment.create_local_runner()
    runner.start(plan["clients"], spawn_rate=1000)
    gevent.sleep(plan["warm_up_s"])
    emit(event="window")
    cpu = time.process_time()
    recorder.is_open = True
    elapsed_s = watch_window(recorder, plan["seconds"])
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
