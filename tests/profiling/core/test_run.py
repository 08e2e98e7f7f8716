"""A written run is read back, and a file that is no run is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.core.run import (
    Cell,
    Failure,
    load_run,
    unit_of,
)
from tests.profiling.runs import PHOTOS, make_compare, make_run, make_window


def test_a_saved_run_reads_back_a_row_a_line(tmp_path: Path) -> None:
    run = make_compare(not_run={"mms": "no binary"}, details={"stages": ["decode"]})
    run.failures.append(Failure(1, "torchserve-stock", "died"))
    path = tmp_path / "deep" / "run.json"
    run.save(path)
    assert load_run(path) == run
    text = path.read_text()
    assert text.count('"latency_ms"') == 6 == text.count(",[1.0,2.0,3.0,")
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


def test_a_value_a_request_is_kept_to_the_microsecond() -> None:
    run = make_run()
    run.add(0, "offpath", PHOTOS, {"latency_ms": [1.23456, 2.0], "elapsed_s": 1.23456})
    listed, single = run.rows
    assert (listed.values, listed.value) == ([1.235, 2.0], None)
    assert (single.values, single.value) == (None, 1.23456)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        *[("elapsed_s", "s"), ("latency_ms", "ms"), ("rss_bytes.workers", "B")],
        *[("cpu_s.fork helpers", "s"), ("gpu.memory_bytes", "B")],
        *[("replies_200", ""), ("gpu.utilisation", ""), ("stage_ms.decode", "ms")],
    ],
)
def test_the_unit_is_the_end_of_the_name(metric: str, unit: str) -> None:
    assert unit_of(metric) == unit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "cannot read", id="no-json"),
        pytest.param("[]", "its format is not", id="list"),
        pytest.param('{"format": "offpath-bench/1"}', "its format", id="old"),
        pytest.param('{"format": "offpath-run/1", "columns": []}', "columns", id="row"),
    ],
)
def test_what_is_no_run_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ExpectedError, match=said):
        load_run(path)


def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    make_run().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": 7}))
    with pytest.raises(ExpectedError, match=r"\$.command"):
        load_run(path)


def test_a_save_cut_short_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    make_run().save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        make_compare().save(path)
    assert path.read_bytes() == before


def test_a_row_knows_its_cell() -> None:
    run = make_run()
    run.add(2, "offpath", Cell("photos", 4, 8), make_window(5))
    assert {row.cell for row in run.rows} == {Cell("photos", 4, 8)}
    assert run.rounds == 3
