"""Load on a server: what to send (LoadPlan), what came back (LoadSample), who sends it (Generator).

Closed loop: each of N clients sends its next request when the last reply has arrived; what is
counted is the replies that arrive inside the window. A server that stalls stops the clients too:
few requests see the stall, and the percentiles hide it.

Open loop (`rate`): requests are due at random times (Poisson), whatever the server does, and
latency counts from the time a request was due, so a stall shows in every one due meanwhile.
What is counted is the requests that were due inside the window, until the last is answered.

The load runs through warm-up into the measured window without a pause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from offpath.handler.errors import WrongOption
from offpath.serving.client import IMAGE_CONTENT_TYPE

# Status that stands for "no HTTP reply at all": refused, reset, timed out.
NO_REPLY = "none"


@dataclass(frozen=True)
class LoadPlan:
    """What to send.

    Attributes:
        url: where each request is posted.
        paths: files whose bytes are the bodies, in turn; shuffled once by `seed`.
        clients: how many wait for a reply at the same time; in open loop the connections, of which
            a due request takes a free one.
        warm_up_s: load before the window.
        seconds: length of the window; None when `requests` ends it.
        requests: replies after which the window ends; None when `seconds` ends it.
        headers: of each request.
        rate: mean of the open loop's requests a second; None for closed loop.
        min_replies: a window of `seconds` goes on until there were as many, at most `longest_s`.
        timeout_s: a request without a reply for so long counts as failed.
    """

    url: str
    paths: tuple[Path, ...]
    clients: int
    warm_up_s: float
    seconds: float | None
    requests: int | None = None
    seed: int = 0
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": IMAGE_CONTENT_TYPE}
    )
    timeout_s: float = 120.0
    rate: float | None = None
    min_replies: int = 0
    longest_s: float = 60.0


@dataclass(frozen=True)
class LoadSample:
    """What came back inside the window.

    Attributes:
        elapsed_s: length of the window, in open loop until its last reply.
        statuses: replies by HTTP status ("200"), NO_REPLY for none.
        latencies_ms: of the 200s, in order of arrival; in open loop from the time they were due.
        cpu_s: CPU time of the generator itself inside the window.
    """

    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: float

    @property
    def ok(self) -> int:
        """Number of 200s."""
        return self.statuses.get("200", 0)

    @property
    def failures(self) -> int:
        """Number of everything else."""
        return sum(self.statuses.values()) - self.ok


class Watcher(Protocol):
    """Called while the load runs, on the caller's thread."""

    def on_window(self) -> None:
        """The window begins: sample the servers now."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Replies so far, about twice a second. Raise to end the load."""


class Generator(Protocol):
    """A kept load generator behind one call."""

    name: str

    def check(self, seconds: float | None, rate: float | None) -> None:
        """Raises WrongOption when it is not installed or knows no such window."""

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """Runs the plan; returns when the window is over.

        Raises:
            WrongOption: the generator died, or `check` refuses the plan.
        """


def find_generator(name: str) -> Generator:
    """A generator by name."""
    # Imported here: they import this module.
    from offpath.profiling.load.generators.locust_adapter import LocustGenerator
    from offpath.profiling.load.generators.wrk_adapter import WrkGenerator

    generators: Mapping[str, Callable[[], Generator]] = {
        "locust": LocustGenerator,
        "wrk": WrkGenerator,
    }
    if name not in generators:
        raise WrongOption(
            f"no load generator {name!r}: expected one of {', '.join(generators)}"
        )
    return generators[name]()


def child_environment() -> dict[str, str]:
    """Environment of a generator's process: one thread, no proxy between it and loopback."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    kept = {
        key: value for key, value in os.environ.items() if key.lower() not in proxies
    }
    return kept | {"PYTHONUNBUFFERED": "1"}
