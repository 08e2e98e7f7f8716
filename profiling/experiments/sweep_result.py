"""What a sweep leaves: raw values of each step, as JSON; statistics are computed at read time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.profiling.core.saved import Saved


@dataclass(frozen=True)
class Step:
    """One server under so many closed-loop clients.

    Attributes:
        statuses: replies by HTTP status, "none" for no reply.
        latencies_ms: of the 200s.
        cpu_s: CPU seconds inside the window by group; see `profiling.result.Measurement`.
    """

    server: str
    users: int
    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """Good replies a second."""
        return self.statuses.get("200", 0) / self.elapsed_s

    @property
    def failed(self) -> dict[str, int]:
        """Everything that was not a 200, by status."""
        return {status: n for status, n in self.statuses.items() if status != "200"}


@dataclass(frozen=True)
class StepFailure:
    """A step that could not be measured: the server did not start, answered wrongly or died."""

    server: str
    users: int
    reason: str


@dataclass
class SweepResult:
    """A run; `settings` has the scenario and the batch size, the rest is as in `BenchResult`."""

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workload: dict[str, Any]
    servers: dict[str, dict[str, Any]]
    steps: list[Step] = field(default_factory=list)
    failures: list[StepFailure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)


SWEEP = Saved("offpath-sweep/1", SweepResult, "bench sweep")
