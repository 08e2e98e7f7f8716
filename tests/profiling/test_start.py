from __future__ import annotations

import pytest
from rich.console import Console

from offpath.commands.bench_start import print_starts
from offpath.profiling.experiments.memory import MemoryMeasurement, share_of_separate
from offpath.profiling.experiments.start import (
    StartMeasurement,
    StartResult,
    summarise_starts,
)
from offpath.profiling.load.page_kinds import Pages


def make_result() -> StartResult:
    result = StartResult("offpath bench start", "2026-01-01", {}, {})
    for round_, (ours, stock) in enumerate([(1.0, 4.0), (3.0, 6.0), (1.0, 5.0)]):
        result.measurements += [
            StartMeasurement(round_, "offpath", ours + 5, ours, 30.0, 20.0),
            StartMeasurement(round_, "torchserve-stock", stock + 5, stock, 90.0, 30.0),
            StartMeasurement(round_, "triton", 2.0, None, 10.0, 10.0),
        ]
    result.failures["mosec"] = "not installed"
    return result


def test_medians_are_divided_by_the_baselines() -> None:
    ours, stock, triton = summarise_starts(make_result(), "torchserve-stock")
    assert (ours.worker_s, ours.worker_ratio) == (1.0, pytest.approx(0.2))
    assert (ours.ready_s, ours.ready_ratio) == (6.0, pytest.approx(0.6))
    assert ours.worker_range == (1.0, 3.0)
    assert ours.first_ratio == pytest.approx(1.5)
    assert (stock.worker_ratio, stock.ready_ratio) == (None, None)
    assert (triton.worker_s, triton.worker_ratio) == (None, None)


def test_without_the_baseline_there_are_no_ratios() -> None:
    assert [r.worker_ratio for r in summarise_starts(make_result(), "naive")] == [
        None,
        None,
        None,
    ]


def test_table_shows_servers_and_who_is_missing() -> None:
    console = Console(record=True, width=200)
    print_starts(make_result(), "torchserve-stock", console)
    shown = console.export_text()
    for part in ("offpath", "0.20", "1.0-3.0", "mosec: not installed"):
        assert part in shown


def measured(server: str, workers: int, team_mb: int) -> MemoryMeasurement:
    pages = {"anonymous": Pages(team_mb * 1_000_000, 0)}
    return MemoryMeasurement(
        server, workers, {"frontend": 1, "workers": workers}, {}, {}, pages, None
    )


def test_team_is_compared_with_as_many_single_workers() -> None:
    one, four = measured("offpath", 1, 500), measured("offpath", 4, 1000)
    other = measured("mosec", 4, 1000)
    everything = [one, four, other]
    assert share_of_separate(four, everything) == pytest.approx(0.5)
    assert share_of_separate(one, everything) is None
    assert share_of_separate(other, everything) is None
