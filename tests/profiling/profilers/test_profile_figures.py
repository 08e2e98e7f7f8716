from __future__ import annotations

import pytest

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.collector import BatchSample
from offpath.profiling.profilers.profile_report import (
    KIND,
    STAGE,
    Profiled,
    list_batches,
)
from tests.profiling.profilers.profiles import (
    add_handler,
    make_batch,
    make_function,
    make_run,
)


def profiled(run: Run) -> Profiled:
    return Profiled(Summary(run), "offpath")


def read(*batches: BatchSample, size: int = 8) -> Profiled:
    return profiled(add_handler(make_run(), batches=batches, size=size))


def test_stages_and_other_add_up_to_the_total():
    handler = profiled(add_handler(make_run()))
    parts = handler.parts(STAGE)
    assert list(parts) == ["decode", "inference", "other"]
    assert parts["decode"] == pytest.approx(12.5 / 8)
    assert sum(parts.values()) == pytest.approx(handler.total(STAGE))
    assert handler.images == 800


def test_figures_are_exact_for_known_batches():
    handler = read(*(make_batch(n, 5, size=4) for n in range(1, 102)), size=4)
    shown = {"p50": 51.0, "p95": 96.0, "p99": 100.0, "mean": 51.0}
    for end, value in shown.items():
        assert handler.value(f"stage_ms.decode.{end}") == pytest.approx(value)
    assert handler.total(STAGE) == pytest.approx(57 / 4)


@pytest.mark.parametrize(
    ("stages_s", "parts"),
    [
        pytest.param(
            {"a": 0.8, "b": 0.4},
            {"a": 800, "b": 400, "other": -200},
            id="overlapping-ones-still-add-up",
        ),
        pytest.param(
            {"a": 1.0, "transfer": 0.0},
            {"a": 1000, "other": 0},
            id="what-never-ran-is-left-out",
        ),
    ],
)
def test_what_no_stage_covers_is_other(stages_s, parts):
    found = read(BatchSample(1, 1.0, stages_s), size=1).parts(STAGE)
    assert found == pytest.approx(parts)


def test_a_stage_that_only_some_batches_have_counts_as_nothing_in_the_others():
    batches = [BatchSample(1, 1.0, {"a": 1.0}), BatchSample(1, 1.0, {"b": 0.5})]
    run = make_run()
    run.variants["offpath"] = {}
    run.add(0, "offpath", Cell("photos", 0, 1), list_batches(batches))
    assert profiled(run).parts(STAGE) == {"a": 500.0, "b": 250.0, "other": 250.0}


def test_a_handler_without_batches_has_no_parts():
    handler = profiled(make_run(variants={"offpath": {}}))
    assert handler.parts(STAGE) == {}
    assert handler.images == 0


def test_packages_add_up_and_the_largest_stands_first():
    functions = [
        make_function("linear", "torch", 1.0),
        make_function("open", "Python", 2.0),
        make_function("read", "Python", 1.0),
    ]
    handler = profiled(add_handler(make_run("cprofile"), functions=functions))
    parts = handler.parts(KIND)
    assert list(parts.items()) == [("Python", 3000 / 800), ("torch", 1000 / 800)]
    assert handler.total(KIND) == 4000 / 800
