"""Clients that retry and record each try."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from offpath.client import Client, Prediction, ServerUnreachable

RETRIES = 5


@dataclass
class Try:
    """One request; status 0 means that no answer came."""

    began_s: float
    ended_s: float
    status: int
    request_id: str


@dataclass
class Tries:
    """All tries of a load.

    Attributes:
        given_up: predictions for which every try failed.
    """

    made: list[Try] = field(default_factory=list)
    given_up: int = 0

    def failed(self) -> list[Try]:
        """Returns the tries that were not answered with 200."""
        return [one for one in list(self.made) if one.status != 200]

    def rate(self, begin_s: float, end_s: float) -> float:
        """Returns the 200s per second."""
        good = [one for one in list(self.made) if one.status == 200]
        return sum(begin_s <= one.ended_s < end_s for one in good) / (end_s - begin_s)


class Watched(Client):
    """A client that records each try."""

    def __init__(self, url: str, model: str, tries: Tries) -> None:
        super().__init__(url, model, retries=RETRIES)
        self._tries = tries

    def _ask(self, *arguments: object) -> Prediction:
        begin_s, status, request_id = time.monotonic(), 0, ""
        try:
            prediction = super()._ask(*arguments)  # type: ignore[arg-type]
            status, request_id = prediction.status, prediction.request_id or ""
            return prediction
        finally:
            one = Try(begin_s, time.monotonic(), status, request_id)
            self._tries.made.append(one)


@contextmanager
def watched_load(
    url: str,
    model: str,
    bodies: Sequence[bytes],
    clients: int,
    pause_s: float,
    tries: Tries,
) -> Iterator[None]:
    """Runs clients during the block; each pauses between two requests."""
    stopped = threading.Event()

    def send(turn: int) -> None:
        with Watched(url, model, tries) as client:
            while not stopped.wait(pause_s):
                try:
                    is_ok = client.try_predict(bodies[turn % len(bodies)]).is_ok
                except ServerUnreachable:
                    is_ok = False
                tries.given_up += not is_ok
                turn += 1

    threads = [threading.Thread(target=send, args=(turn,)) for turn in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
