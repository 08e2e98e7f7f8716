"""Made-up trade-offs with known figures."""

from __future__ import annotations

from offpath.profiling.experiments.tradeoff import DELAY, SIZE, WORKERS, list_candidates
from offpath.profiling.experiments.tradeoff_result import TradeoffPoint, TradeoffResult
from tests.profiling.tunings import PRESET, make_window

KNOBS = {DELAY: [1, 2, 20], SIZE: [1, 8], WORKERS: [1, 2, 4]}


def make_tradeoff() -> TradeoffResult:
    """Two rounds: rate 100 x workers, or more by 10 in the second; p95 is the delay + clients."""
    points = [
        TradeoffPoint(
            round_,
            candidate,
            clients,
            make_window(
                100 * candidate.workers + 10 * round_,
                candidate.max_batch_delay_ms + clients,
            ),
        )
        for round_ in range(2)
        for candidate in list_candidates(PRESET, KNOBS, cores=2)
        for clients in (1, 32)
    ]
    return TradeoffResult(
        command="offpath bench tradeoff",
        started_at="2026-01-01T00:00:00+00:00",
        host={"cpu": "some", "cores": 2},
        settings={"model": "near-free"},
        workload={"name": "photos", "mean_bytes": 1000, "count": 2, "identity": "ab"},
        reference=PRESET,
        knobs=KNOBS,
        points=points,
    )
