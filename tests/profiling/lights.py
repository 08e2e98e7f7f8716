"""Made-up light-load results with known figures."""

from __future__ import annotations

from offpath.profiling.experiments.light_result import (
    ALONE,
    LOOPBACK,
    LightResult,
    LoneWindow,
)

ALONE_STAGES = {"decode": 10.0, "transform": 1.0, "inference": 4.0, "log": 0.0}
SERVED_STAGES = {"decode": 10.5, "transform": 1.1, "inference": 4.2, "log": 0.1}


def make_window(
    round_: int, server: str, latency_ms: float, stages: dict[str, float], total: float
) -> LoneWindow:
    """Three requests; the last one is slow."""
    count = 3
    told = stages | ({"total": total} if stages else {})
    return LoneWindow(
        round=round_,
        server=server,
        workload="photos",
        elapsed_s=1.0,
        latencies_ms=[latency_ms] * (count - 1) + [3 * latency_ms],
        stages_ms={name: [ms] * count for name, ms in told.items()},
        cpu_s={"frontend": 0.003, "workers": 0.06, "other": 0.01} if stages else {},
    )


def make_light() -> LightResult:
    """15 ms alone; offpath 20 ms: 0.8 more in the worker, 0.7 beside, 2 of delay, 0.5 client."""
    windows = [
        window
        for round_ in range(2)
        for window in (
            make_window(round_, ALONE, 15.2, ALONE_STAGES, 15.2),
            make_window(round_, LOOPBACK, 0.5, {}, 0.0),
            make_window(round_, "offpath", 20.0, SERVED_STAGES, 16.5),
            make_window(round_, "torchserve-stock", 50.0, {}, 0.0),
        )
    ]
    return LightResult(
        command="offpath bench light",
        started_at="2026-01-01T00:00:00+00:00",
        host={"cpu": "some", "cores": 2},
        settings={"model": "near-free"},
        workloads={"photos": {"identity": "ab", "mean_bytes": 1000, "count": 2}},
        servers={"offpath": {"stock": False}, "torchserve-stock": {"stock": True}},
        delays_ms={"offpath": 2.0},
        windows=windows,
    )
