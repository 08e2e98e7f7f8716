"""Closed-loop clients that remember which requests were answered, for the prediction log's trials.

Load generators keep latencies; what the log must be checked against is the request ids.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 130.0
# After a refused connection: a server that is being restarted is not hammered.
PAUSE_S = 0.05


@dataclass
class Answers:
    """What the clients got.

    Attributes:
        request_ids: Of the replies with status 200.
        latencies_ms: Of the same replies.
        statuses: All replies by status; 0 where no reply came.
    """

    request_ids: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def add(self, other: Answers) -> None:
        """Takes over what `other` holds."""
        self.request_ids += other.request_ids
        self.latencies_ms += other.latencies_ms
        self.statuses += other.statuses

    @property
    def failed(self) -> int:
        """Everything but 200."""
        return sum(self.statuses.values()) - self.statuses[200]


class Clients:
    """A context manager under which clients send, each its next request after the last reply."""

    def __init__(self, url: str, bodies: Sequence[bytes], clients: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._path = parts.path
        self._bodies = bodies
        self._stopped = threading.Event()
        self._answers = [Answers() for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._send_all, args=(number,), daemon=True)
            for number in range(clients)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    @property
    def answers(self) -> Answers:
        """What all clients got; complete after the end of the context."""
        total = Answers()
        for answers in self._answers:
            total.add(answers)
        return total

    def _send_all(self, number: int) -> None:
        answers = self._answers[number]
        connection = self._connect()
        turn = number
        while not self._stopped.is_set():
            body = self._bodies[turn % len(self._bodies)]
            turn += 1
            try:
                _send(connection, self._path, body, answers)
            except (OSError, http.client.HTTPException):
                answers.statuses[0] += 1
                connection.close()
                connection = self._connect()
                self._stopped.wait(PAUSE_S)
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)


def _send(
    connection: http.client.HTTPConnection, path: str, body: bytes, answers: Answers
) -> None:
    begin_s = time.perf_counter()
    headers = {"Content-Type": "application/octet-stream"}
    connection.request("POST", path, body, headers)
    reply = connection.getresponse()
    reply.read()
    answers.statuses[reply.status] += 1
    if reply.status == 200:
        answers.latencies_ms.append((time.perf_counter() - begin_s) * 1e3)
        answers.request_ids.append(reply.headers.get("x-request-id", ""))
