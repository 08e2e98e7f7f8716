"""A written run is read back."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.core.run import Failure, load_run
from tests.profiling.runs import make_compare


def test_a_saved_run_reads_back_a_row_a_line(tmp_path: Path) -> None:
    run = make_compare(not_run={"triton": "no binary"}, details={"stages": ["decode"]})
    run.failures.append(Failure(1, "torchserve-stock", "died"))
    path = tmp_path / "deep" / "run.json"
    run.save(path)
    assert load_run(path) == run
    text = path.read_text()
    assert text.count('"latency_ms"') == 6 == text.count(",[1.0,2.0,3.0,")
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]
