"""Made-up searches with known figures."""

from __future__ import annotations

from typing import Any

from offpath.profiling.experiments.tuning.result import (
    FinalRound,
    Trial,
    TuneResult,
    Window,
)
from offpath.profiling.experiments.tuning.space import Candidate

PRESET = Candidate(8, 2, 2, 1)
OTHER = Candidate(16, 5, 2, 1)


def make_window(rate: float, ms: float, failures: int = 0, **changes: Any) -> Window:
    """Ten seconds in which every answer took `ms`."""
    values: dict[str, Any] = {
        "elapsed_s": 10.0,
        "statuses": {"200": round(10 * rate)} | ({"503": failures} if failures else {}),
        "latencies_ms": [ms] * 20 if rate else [],
        "cpu_s": {"other": 0.1},
    }
    return Window(**(values | changes))


def make_trial(
    candidate: Candidate, rate: float, ms: float, failures: int = 0
) -> Trial:
    return Trial(candidate, [make_window(rate, ms, failures)], ready_s=5.0)


def make_finals(
    preset_rates: list[float], other_rates: list[float]
) -> list[FinalRound]:
    """Rounds in which both answer in 50 ms."""
    return [
        FinalRound(number, candidate, make_window(rate, 50))
        for number, rates in enumerate(zip(preset_rates, other_rates))
        for candidate, rate in zip((PRESET, OTHER), rates)
    ]


def make_tuning(**changes: Any) -> TuneResult:
    values: dict[str, Any] = {
        "command": "offpath tune --model near-free",
        "started_at": "2026-01-01T00:00:00+00:00",
        "search": {
            "model": "near-free",
            "archive": "ab",
            "workload": {"name": "photos", "identity": "cd"},
            "clients": 32,
            "repeats": 2,
            "seconds": 4.0,
            "warm_up_s": 3.0,
            "generator": "locust",
            "host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        },
        "reference": PRESET,
        "trials": [
            make_trial(PRESET, 100, 80),
            make_trial(OTHER, 120, 90),
            make_trial(Candidate(1, 1, 1, 1), 50, 20),
            make_trial(Candidate(32, 20, 3, 2), 200, 400),
        ],
        "finals": make_finals([100, 102, 101], [120, 118, 123]),
    }
    return TuneResult(**(values | changes))
