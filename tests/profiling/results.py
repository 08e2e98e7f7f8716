"""Made-up results with known figures."""

from __future__ import annotations

from typing import Any

from offpath.profiling.core.result import BenchResult, LimitMeasurement, Measurement
from offpath.profiling.experiments.sweep_result import Step, SweepResult


def make_measurement(round_: int, server: str, ok: int, **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "round": round_,
        "server": server,
        "workload": "photos",
        "elapsed_s": 10.0,
        "statuses": {"200": ok},
        "latencies_ms": [float(ms) for ms in range(1, 101)],
        "cpu_s": {"frontend": 2.0, "workers": 10.0, "generator": 0.5, "other": 0.2},
        "rss_bytes": {"frontend": 10, "workers": 20},
        "ready_s": 5.0,
        "answer_difference": 0.01,
    }
    return Measurement(**(values | changes))


def make_result(**changes: Any) -> BenchResult:
    values: dict[str, Any] = {
        "command": "offpath bench compare",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        "settings": {"clients": 32, "seconds": 10.0},
        "workloads": {"photos": {"identity": "ab", "mean_bytes": 1000, "count": 32}},
        "servers": {"torchserve-stock": {"stock": True}, "offpath": {"stock": False}},
        "limits": [
            LimitMeasurement(0, "decode", "photos", 2000, 10.0, 20.0),
            LimitMeasurement(0, "forward", None, 6000, 10.0, 20.0),
        ],
        "measurements": [
            make_measurement(0, "torchserve-stock", 100),
            make_measurement(0, "offpath", 1000),
            make_measurement(1, "torchserve-stock", 120),
            make_measurement(1, "offpath", 1500),
            make_measurement(2, "torchserve-stock", 110),
            make_measurement(2, "offpath", 1200),
        ],
    }
    return BenchResult(**(values | changes))


def make_sweep() -> SweepResult:
    return SweepResult(
        command="offpath bench sweep --scenario keep",
        started_at="2026-01-01T00:00:00+00:00",
        host={"cpu": "some", "cores": 2},
        settings={"scenario": "keep", "batch_size": 1},
        workload={"name": "photos", "mean_bytes": 1000, "count": 2, "identity": "ab"},
        servers={"offpath": {}, "triton": {}},
        steps=[
            Step("offpath", 1, 10.0, {"200": 500}, [10.0, 20.0] * 250, {}),
            Step("offpath", 2, 10.0, {"200": 900, "503": 7}, [11.0] * 900, {}),
            Step("triton", 1, 10.0, {"200": 400}, [12.0] * 400, {}),
        ],
        not_run={"mms": "no binary"},
    )
