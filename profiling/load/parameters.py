"""Load on a server: its parameters (Load), one window (WindowLoad), the replies (LoadSample).

Closed loop: each of N clients sends its next request when its last reply has arrived. Counted are
the replies that arrive inside the window. A server that stalls stops the clients too, so few
requests see the stall and the percentiles hide it.

Open loop (`rate`): requests are due at random times (Poisson), whatever the server does. Latency
counts from the time a request was due, so a stall shows in every request that was due meanwhile.
Counted are the requests that were due inside the window, until the last one is answered.

The load runs through the warm-up into the measured window without a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from offpath.serving.client import IMAGE_CONTENT_TYPE

# The status of a request without any HTTP reply: refused, reset, timed out.
NO_REPLY = "none"


@dataclass(frozen=True, kw_only=True)
class Load:
    """The parameters of a load, equal for all windows of a run.

    Attributes:
        seconds: length of the window.
        warm_up_s: seconds of load before the window.
        rate: mean requests per second of the open loop; None for the closed loop.
        min_replies: a window of `seconds` continues until it has this many replies, for a minute
            at most.
        generator: name of the program that sends the load, see `generators.find_generator`.
    """

    seconds: float
    warm_up_s: float
    rate: float | None = None
    min_replies: int = 0
    generator: str = "locust"

    def for_window(
        self, url: str, paths: tuple[Path, ...], clients: int, **changes: Any
    ) -> WindowLoad:
        """Returns one window of this load; `changes` are further fields."""
        values = {**asdict(self), **changes}
        return WindowLoad(url=url, paths=paths, clients=clients, **values)


@dataclass(frozen=True, kw_only=True)
class WindowLoad(Load):
    """One window of load.

    Attributes:
        paths: files with the bodies, sent in turn, in an order that is always the same.
        clients: number of clients that wait for a reply at the same time. In the open loop, number
            of connections; a due request takes a free one.
        timeout_s: a request without a reply after this time counts as failed.
        longest_s: longest window that `min_replies` may lead to.
    """

    url: str
    paths: tuple[Path, ...]
    clients: int
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": IMAGE_CONTENT_TYPE})
    timeout_s: float = 120.0
    longest_s: float = 60.0


@dataclass(frozen=True)
class LoadSample:
    """The replies of a window.

    Attributes:
        elapsed_s: length of the window; in the open loop until its last reply.
        statuses: number of replies by HTTP status ("200"); NO_REPLY for none.
        latencies_ms: latencies of the 200s in order of arrival; in the open loop from the time
            they were due.
        cpu_s: CPU time of the generator itself inside the window.
    """

    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: float

    @property
    def ok(self) -> int:
        return self.statuses.get("200", 0)

    @property
    def failures(self) -> int:
        return sum(self.statuses.values()) - self.ok


class Watcher(Protocol):
    """Is called while the load runs, on the caller's thread."""

    def on_window(self) -> None:
        """The window begins: sample the servers now."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Receives the replies so far, about twice per second; an exception ends the load."""


class Generator(Protocol):
    """A program that sends load."""

    name: str

    def check(self, load: Load) -> None:
        """Raises WrongOption when the program is not installed or cannot send such a load."""

    def run(self, load: WindowLoad, watcher: Watcher) -> LoadSample:
        """Sends the load; returns when the window is over.

        Raises what `check` raises, and ExpectedError if the program died.
        """
