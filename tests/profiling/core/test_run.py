"""A written run is read back, and a file that is no run is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.core.run import Failure, load_run
from tests.profiling.runs import PHOTOS, make_compare, make_run


def test_a_saved_run_reads_back_a_row_a_line(tmp_path: Path) -> None:
    run = make_compare(not_run={"triton": "no binary"}, details={"stages": ["decode"]})
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
    ("text", "said"),
    [
        pytest.param("{", "cannot read", id="no-json"),
        pytest.param('{"format": "offpath-run/1", "columns": []}', "columns", id="row"),
    ],
)
def test_what_is_no_run_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ExpectedError, match=said):
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
