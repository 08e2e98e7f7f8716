"""The calibration's verdicts, and one of its parts against a real server."""

from __future__ import annotations

import io

from rich.console import Console

from profiling.calibration import (
    Calibration,
    Delay,
    Instant,
    find_problems,
    measure_failures,
    write_body,
)
from profiling.calibration_report import print_calibration


def make_calibration() -> Calibration:
    held = {"p50": 200.0, "p99": 300.0}
    return Calibration(
        command="offpath bench calibrate",
        started_at="2026-01-01T00:00:00+00:00",
        host={},
        instant=[Instant("locust", "photos-55k", 2500.0, 0.25)],
        delays=[Delay("open", {"p50": 202.0, "p99": 301.0}, held, 20, 20)],
        stall_p99_ms={"closed": 14.0, "open": 1900.0},
    )


def test_a_good_generator_has_no_problems():
    assert find_problems(make_calibration(), {"photos-55k": 400.0}) == []


def test_each_problem_is_named():
    bad = make_calibration()
    held = {"p50": 200.0}
    bad.delays = [Delay("closed", {"p50": 206.0}, held, 19, 20)]
    bad.stall_p99_ms["open"] = 20.0
    slow, off, missed, hidden = find_problems(bad, {"photos-55k": 600.0})
    assert "2500" in slow and "600" in slow
    assert "3.0 %" in off
    assert "19 failures counted of 20" in missed
    assert "hides a stall" in hidden


def test_failures_are_exact_in_both_loops(tmp_path):
    path = write_body(tmp_path, 2000)
    assert measure_failures("closed", path) == (20, 20)
    assert measure_failures("open", path) == (20, 20)


def test_the_report_fits_80_columns():
    text = io.StringIO()
    print_calibration(make_calibration(), Console(file=text, width=80))
    assert "202.0/200.0" in text.getvalue() and "…" not in text.getvalue()
