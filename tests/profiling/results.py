"""A made-up sweep with known figures."""

from __future__ import annotations

from offpath.profiling.experiments.sweep_result import Step, SweepResult


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
