"""The calibration's verdicts, and one of its parts against a real server."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.calibration import (
    Calibration,
    Delay,
    Instant,
    find_problems,
    measure_delay,
    measure_failures,
    measure_instant,
    write_body,
)
from offpath.profiling.experiments.calibration_report import print_calibration
from offpath.profiling.load.plan import find_generator

pytestmark = pytest.mark.timing


def make_calibration() -> Calibration:
    held = {"p50": 200.0, "p99": 300.0}
    return Calibration(
        command="offpath bench calibrate",
        started_at="2026-01-01T00:00:00+00:00",
        host={},
        instant=[Instant("locust", "photos-55k", 2500.0, 0.25)],
        delays=[Delay("locust", "open", {"p50": 202.0, "p99": 301.0}, held, 20, 20)],
        stall_p99_ms={"closed": 14.0, "open": 1900.0},
    )


def test_a_good_generator_has_no_problems():
    assert find_problems(make_calibration(), {"photos-55k": 400.0}) == []


def test_each_problem_is_named():
    bad = make_calibration()
    held = {"p50": 200.0}
    bad.delays = [Delay("locust", "closed", {"p50": 206.0}, held, 19, 20)]
    bad.stall_p99_ms["open"] = 20.0
    slow, off, missed, hidden = find_problems(bad, {"photos-55k": 600.0})
    assert "2500" in slow and "600" in slow
    assert "3.0 %" in off
    assert "19 failures counted of 20" in missed
    assert "hides a stall" in hidden


def test_failures_are_exact_in_both_loops(tmp_path):
    path = write_body(tmp_path, 2000)
    assert measure_failures("locust", "closed", path) == (20, 20)
    assert measure_failures("locust", "open", path) == (20, 20)


def test_a_candidate_that_is_off_is_told_and_is_no_problem():
    result = make_calibration()
    held = {"p50": 200.0, "p99": 300.0}
    result.delays.append(
        Delay("perf_analyzer", "closed", {"p50": 220.0, "p99": 310.0}, held, None, 20)
    )
    result.without["loadgen"] = "LoadGen is not installed"
    assert find_problems(result, {}) == []
    text = io.StringIO()
    print_calibration(result, Console(file=text, width=80))
    shown = text.getvalue()
    assert "220.0/200.0" in shown and "ends/20" in shown
    assert "LoadGen is not installed" in shown


@pytest.mark.parametrize("generator", ["perf_analyzer", "loadgen"])
def test_a_candidate_sees_what_the_server_measured(tmp_path, generator):
    try:
        find_generator(generator).check(1.0, None)
    except ExpectedError as error:
        pytest.skip(str(error))
    path = write_body(tmp_path, 2000)
    delay = measure_delay(generator, "open", path, requests=60)
    # Not a bound of theirs: a generator that is wrong is far off.
    assert delay.error < 0.2
    assert delay.failures == (None if generator == "perf_analyzer" else 20)
    assert measure_instant(generator, "npy", path, 1.0).rate > 10


def test_the_report_fits_80_columns():
    text = io.StringIO()
    print_calibration(make_calibration(), Console(file=text, width=80))
    assert "202.0/200.0" in text.getvalue() and "…" not in text.getvalue()
