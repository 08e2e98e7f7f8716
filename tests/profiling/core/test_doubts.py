"""Each reason to doubt a figure is named with its cure, and nothing else is."""

from __future__ import annotations

import pytest

from offpath.profiling.core.doubts import find_doubts
from tests.profiling.runs import PHOTOS, make_run, make_window


def doubts_of(*windows, **changes) -> list[str]:
    run = make_run(variants={"offpath": {}}, **changes)
    for round_, window in enumerate(windows):
        run.add(round_, "offpath", PHOTOS, window)
    return find_doubts(run)


def test_quiet_rounds_that_agree_raise_no_doubt() -> None:
    assert doubts_of(make_window(1000), make_window(1050)) == []


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        pytest.param([make_window(900, other_cores=0.3)], "noise: 0.30", id="noise"),
        pytest.param([make_window(900), make_window(600)], "by 40 %", id="spread"),
        pytest.param([make_window(99)], "had 99, its percentiles", id="few-replies"),
        pytest.param(
            [make_window(900, replies_503=7, replies_none=1)],
            "failures: offpath, photos, 32 clients: 7 x 503, 1 x none",
            id="failures",
        ),
    ],
)
def test_each_doubt_is_said_once(windows, said: str) -> None:
    found = doubts_of(*windows)
    assert [said in doubt for doubt in found] == [True]
