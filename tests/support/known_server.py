"""An HTTP server whose delays, failures and stalls are known: load generators are checked with it.

It counts what it did; a GET returns the counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import httpx

from offpath.profiling.load import known_server
from offpath.profiling.load.known_server import ANSWER, OK, KnownProtocol, serve

FAILED = b"503 Service Unavailable"


@dataclass(frozen=True)
class Behaviour:
    """What the server does.

    Attributes:
        delays_s: a request is held for the delay of its number, in turn.
        fail_every: every so many-th request is answered 503; 0: none.
        stall_at, stall_s: at the request of this number the whole server stands still so long.
    """

    delays_s: tuple[float, ...] = (0.0,)
    fail_every: int = 0
    stall_at: int = 0
    stall_s: float = 0.0


@dataclass
class Counts:
    """What the server saw: requests, and how long it held those it answered with 200, in ms."""

    requests: int = 0
    held_ms: list[float] = field(default_factory=list)


class BehavingProtocol(KnownProtocol):
    """Answers as `behaviour` says; all connections count together."""

    def __init__(self, behaviour: Behaviour, counts: Counts) -> None:
        self._behaviour, self._counts = behaviour, counts

    def answer(self, head: bytes) -> None:
        counts, behaviour = self._counts, self._behaviour
        if head.startswith(b"GET"):
            self.write(OK, json.dumps(asdict(counts)).encode())
            return
        start_s = time.perf_counter()
        counts.requests += 1
        number = counts.requests
        if number == behaviour.stall_at:
            # On purpose not asyncio's sleep: the whole server stands still.
            time.sleep(behaviour.stall_s)
        delay_s = behaviour.delays_s[number % len(behaviour.delays_s)]
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._reply, number, start_s)

    def _reply(self, number: int, start_s: float) -> None:
        every = self._behaviour.fail_every
        if every and number % every == 0:
            self.write(FAILED, ANSWER)
            return
        self.write(OK, ANSWER)
        self._counts.held_ms.append(1000 * (time.perf_counter() - start_s))


@dataclass(frozen=True)
class BehavingServer:
    """A running one."""

    url: str
    pid: int

    def counts(self) -> Counts:
        """What it saw so far."""
        # trust_env: no proxy between us and loopback.
        return Counts(**httpx.get(self.url, timeout=30, trust_env=False).json())


@contextmanager
def run_known_server(behaviour: Behaviour = Behaviour()) -> Iterator[BehavingServer]:
    """Runs one in a process of its own."""
    with known_server.run_known_server(__name__, json.dumps(asdict(behaviour))) as one:
        yield BehavingServer(one.url, one.pid)


if __name__ == "__main__":
    wanted, seen = Behaviour(**json.loads(sys.argv[1])), Counts()
    asyncio.run(serve(lambda: BehavingProtocol(wanted, seen)))
