"""What a benchmark run leaves: raw values with the host they come from, as JSON; no statistics.

`summary.py` computes at read time. Rounds of two runs may be merged when everything that could move
a number is alike; otherwise merging is refused and the difference named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.saved import IsDataclass, Saved

# More than this many cores busy with something else, and figures are noisy.
NOISY_CORES = 0.1


@dataclass(frozen=True)
class Measurement:
    """One window of load on one server.

    Attributes:
        statuses: replies by HTTP status, "none" for no reply.
        latencies_ms: of the 200s.
        cpu_s: CPU seconds inside the window by group: `frontend`, `workers`, `generator`, and
            `other` for everything else on the machine (the noise).
        rss_bytes, pss_bytes: by group, at the end of the window; shared pages count in each
            process, or in proportion.
        gpu: `utilisation` (0 to 1, mean over the window and the devices) and `memory_bytes` (all
            devices, the highest reading); empty without a GPU.
        ready_s: from the start of the server to its first good answer.
        answer_difference: largest difference of a probability from the reference.
        tries: windows that were measured until one was not disturbed; this is the quietest.
    """

    round: int
    server: str
    workload: str
    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: dict[str, float]
    rss_bytes: dict[str, int]
    ready_s: float
    answer_difference: float
    pss_bytes: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)
    tries: int = 1

    @property
    def other_cores(self) -> float:
        """Cores that were busy with something else during the window."""
        return self.cpu_s.get("other", 0.0) / self.elapsed_s


@dataclass(frozen=True)
class Start:
    """One cold start of a server.

    Attributes:
        ready_s: from the start to the first 200.
        first_ms: latency of the first request after the server said it was ready.
        steady_ms: median latency of one client's next requests; None when not asked for.
    """

    round: int
    server: str
    ready_s: float
    first_ms: float
    steady_ms: float | None


@dataclass(frozen=True)
class Failure:
    """A server that did not start, answered wrongly or died; it is left out from then on."""

    round: int
    server: str
    reason: str


@dataclass(frozen=True)
class LimitMeasurement:
    """One measurement of a physical limit; `workload` is None for the forward-only one.

    cpu_s below cores x elapsed_s means that something else had the cores. `engine` is what an
    archive of ours asks for ("openvino int8"), None for eager fp32.
    """

    round: int
    kind: str
    workload: str | None
    images: int
    elapsed_s: float
    cpu_s: float
    engine: str | None = None


class OfRound(IsDataclass, Protocol):
    """A dataclass that says which round it belongs to."""

    @property
    def round(self) -> int:
        """Counted from 0."""


Row = TypeVar("Row", bound=OfRound)


@dataclass
class BenchResult:
    """A run.

    Attributes:
        command: the command line.
        started_at: RFC 3339, UTC.
        host: from `profiling.host`.
        settings: everything that was chosen, the seed too.
        workloads: name -> identity, mean_bytes, count.
        servers: name -> how it was set up.
        not_run: name -> why a server cannot run on this machine.
    """

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workloads: dict[str, dict[str, Any]]
    servers: dict[str, dict[str, Any]]
    limits: list[LimitMeasurement] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Number of rounds begun."""
        return 1 + max((m.round for m in self.measurements), default=-1)


BENCH = Saved("offpath-bench/1", BenchResult, "bench")


def merge_results(first: BenchResult, second: BenchResult) -> BenchResult:
    """The rounds of both, those of the second numbered after the first's.

    Raises:
        ExpectedError: the runs are unlike; the message names what differs.
    """
    check_alike(first, second)
    offset = first.rounds
    return replace(
        first,
        limits=first.limits + renumber(second.limits, offset),
        measurements=first.measurements + renumber(second.measurements, offset),
        starts=first.starts + renumber(second.starts, offset),
        failures=first.failures + renumber(second.failures, offset),
    )


def renumber(rows: Iterable[Row], offset: int) -> list[Row]:
    """The rows with `offset` added to their rounds."""
    return [replace(row, round=row.round + offset) for row in rows]


def check_alike(
    first: object,
    second: object,
    parts: Sequence[str] = ("host", "settings", "workloads", "servers"),
) -> None:
    """Raises ExpectedError when figures of the two runs do not belong together.

    Args:
        parts: attributes of both that must be alike.
    """
    for part in parts:
        differences = find_differences(
            getattr(first, part), getattr(second, part), part
        )
        if differences:
            raise ExpectedError(
                "these runs are not alike, their rounds cannot be merged: "
                + "; ".join(differences[:5])
            )


def find_differences(first: Any, second: Any, where: str) -> list[str]:
    """Every differing leaf of two nested mappings, as "where: one, other"."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return [
            difference
            for key in sorted({*first, *second})
            for difference in find_differences(
                first.get(key), second.get(key), f"{where}.{key}"
            )
        ]
    # JSON knows no tuples.
    same = json.dumps(first) == json.dumps(second)
    return [] if same else [f"{where}: {first!r}, {second!r}"]
