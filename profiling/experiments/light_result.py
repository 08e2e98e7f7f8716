"""What `offpath bench light` leaves: every request's latency and stages, as JSON; no statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.profiling.core.saved import Saved

# Names of the windows without a server under test.
ALONE, LOOPBACK = "alone", "loopback"
# Of the stages: the handler's own clock over all of them.
TOTAL = "total"


@dataclass(frozen=True)
class LoneWindow:
    """Requests one after the other, never two at a time.

    Attributes:
        server: ALONE (the handler in a process of its own, latency is its `handle`), LOOPBACK (the
            same client and bodies, a server that answers at once), or a server's name.
        stages_ms: by stage, a value a request, TOTAL among them; empty where nothing tells.
        cpu_s: CPU seconds by group, see `profiling.result.Measurement`; empty for ALONE, LOOPBACK.
    """

    round: int
    server: str
    workload: str
    elapsed_s: float
    latencies_ms: list[float] = field(repr=False)
    stages_ms: dict[str, list[float]] = field(default_factory=dict, repr=False)
    cpu_s: dict[str, float] = field(default_factory=dict)


@dataclass
class LightResult:
    """A run.

    Attributes:
        delays_ms: server -> its max batch delay, 0 where it does not batch; without unknown ones.
    """

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workloads: dict[str, dict[str, Any]]
    servers: dict[str, dict[str, Any]]
    delays_ms: dict[str, float]
    windows: list[LoneWindow] = field(default_factory=list)


LIGHT = Saved("offpath-light/1", LightResult, "bench light")
