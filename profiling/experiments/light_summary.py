"""Where a lone request's latency goes; pure functions over a `LightResult`.

All figures are medians, and the account adds up to the client's median by its last part, which is
what the others leave: "front end and protocol" where the server tells its stages.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from offpath.handler.stages import Stage
from offpath.profiling.core.result import NOISY_CORES
from offpath.profiling.core.summary import percentile
from offpath.profiling.experiments.light_result import (
    ALONE,
    LOOPBACK,
    TOTAL,
    LightResult,
    LoneWindow,
)

# What a lone request may cost beyond decode, transform and forward, in ms.
BOUND_MS = 3.0
# The work itself, which no server can leave out.
WORK = (Stage.DECODE, Stage.TRANSFORM, Stage.TRANSFER, Stage.INFERENCE)

WORK_ALONE = "decode, transform, forward alone"
WORK_SLOWER = "the same in the worker, more"
HANDLER = "handler, the rest"
DELAY = "max batch delay"
CLIENT = "client and loopback"
FRONT_END = "front end and protocol"
SERVER = "server"


@dataclass(frozen=True)
class LightRow:
    """One server on one workload.

    Attributes:
        alone_p50_ms, alone_p95_ms: decode, transform and forward alone, in the same rounds.
        parts: (name, ms) of the account, in the order of the path; they add up to `p50_ms`.
        stages: (stage, ms alone, ms in the server), medians; empty where the server tells none.
        cpu_ms: CPU milliseconds a request by group.
        other_cores: cores busy with something else, the worst window.
    """

    workload: str
    server: str
    requests: int
    p50_ms: float
    p95_ms: float
    alone_p50_ms: float
    alone_p95_ms: float
    parts: list[tuple[str, float]]
    stages: list[tuple[str, float, float]]
    cpu_ms: dict[str, float]
    other_cores: float

    @property
    def overhead_ms(self) -> float:
        """What the server adds to the work, between the medians."""
        return self.p50_ms - self.alone_p50_ms

    @property
    def is_within(self) -> bool:
        """Whether that is within the bound."""
        return self.overhead_ms <= BOUND_MS


def summarise_light(result: LightResult) -> list[LightRow]:
    """One row per workload and server, in the order of the run."""
    return [
        make_row(result, workload, server)
        for workload in result.workloads
        for server in result.servers
        if select(result, workload, server) and select(result, workload, ALONE)
    ]


def select(result: LightResult, workload: str, server: str) -> list[LoneWindow]:
    """The windows of one server on one workload."""
    return [w for w in result.windows if w.workload == workload and w.server == server]


def make_row(result: LightResult, workload: str, server: str) -> LightRow:
    """Summarises the rounds of one server."""
    windows = select(result, workload, server)
    alone = select(result, workload, ALONE)
    latencies, work = pool(windows), sum_stages(alone)
    alone_ms, p50_ms = statistics.median(work), statistics.median(latencies)
    parts = [(WORK_ALONE, alone_ms), *list_overhead(result, windows, alone_ms)]
    left_ms = p50_ms - sum(ms for _, ms in parts)
    parts.append((FRONT_END if has_stages(windows) else SERVER, left_ms))
    return LightRow(
        workload=workload,
        server=server,
        requests=len(latencies),
        p50_ms=p50_ms,
        p95_ms=percentile(latencies, 95),
        alone_p50_ms=alone_ms,
        alone_p95_ms=percentile(work, 95),
        parts=parts,
        stages=compare_stages(alone, windows) if has_stages(windows) else [],
        cpu_ms=cpu_ms_per_request(windows),
        other_cores=max(w.cpu_s.get("other", 0.0) / w.elapsed_s for w in windows),
    )


def list_overhead(
    result: LightResult, windows: Sequence[LoneWindow], alone_ms: float
) -> list[tuple[str, float]]:
    """The parts of the overhead that are known."""
    parts = []
    if has_stages(windows):
        work_ms = statistics.median(sum_stages(windows))
        total_ms = statistics.median(pool_stage(windows, TOTAL))
        parts += [(WORK_SLOWER, work_ms - alone_ms), (HANDLER, total_ms - work_ms)]
    delay_ms = result.delays_ms.get(windows[0].server)
    if delay_ms is not None:
        parts.append((DELAY, delay_ms))
    client = pool(select(result, windows[0].workload, LOOPBACK))
    if client:
        parts.append((CLIENT, statistics.median(client)))
    return parts


def pool(windows: Sequence[LoneWindow]) -> list[float]:
    """The latencies of all rounds."""
    return [ms for window in windows for ms in window.latencies_ms]


def pool_stage(windows: Sequence[LoneWindow], stage: str) -> list[float]:
    """One stage's values of all rounds."""
    return [ms for window in windows for ms in window.stages_ms.get(stage, [])]


def sum_stages(windows: Sequence[LoneWindow]) -> list[float]:
    """Milliseconds of WORK, a value a request."""
    rows = [pool_stage(windows, stage) for stage in WORK]
    return [sum(values) for values in zip(*filter(None, rows))]


def has_stages(windows: Sequence[LoneWindow]) -> bool:
    """Whether the server tells where its time goes."""
    return all(TOTAL in window.stages_ms for window in windows)


def compare_stages(
    alone: Sequence[LoneWindow], windows: Sequence[LoneWindow]
) -> list[tuple[str, float, float]]:
    """Each stage's median alone and in the server; those that neither spends time in left out."""
    rows = []
    for stage in [*(stage.value for stage in Stage), TOTAL]:
        medians = [
            statistics.median(pool_stage(side, stage) or [0.0])
            for side in (alone, windows)
        ]
        if any(medians):
            rows.append((stage, medians[0], medians[1]))
    return rows


def cpu_ms_per_request(windows: Sequence[LoneWindow]) -> dict[str, float]:
    """CPU milliseconds a request by group, over all rounds; `other` is not ours."""
    requests = sum(len(window.latencies_ms) for window in windows)
    groups = {group: 0.0 for window in windows for group in window.cpu_s}
    for window in windows:
        for group, seconds in window.cpu_s.items():
            groups[group] += 1e3 * seconds / requests
    return {group: ms for group, ms in groups.items() if group != "other"}


def find_doubts(rows: Sequence[LightRow]) -> list[str]:
    """What makes the figures doubtful, each with its cure."""
    return [
        f"noise: {row.other_cores:.2f} cores were busy with something else during {row.server} on"
        f" {row.workload}; stop it and run again"
        for row in rows
        if row.other_cores > NOISY_CORES
    ]
