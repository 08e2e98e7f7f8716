"""`offpath bench compare` with a real server, and one that cannot start."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from offpath.archive.photographs import BUNDLED
from offpath.cli import run
from offpath.profiling.core.run import Cell, load_run
from offpath.profiling.core.statistics import Summary

SERVER, CLIENTS = "offpath-granian-direct", 2


def list_children() -> set[psutil.Process]:
    """Returns the processes of this one, but for what Python's multiprocessing keeps."""
    children = psutil.Process().children(recursive=True)
    return {one for one in children if "resource_tracker" not in " ".join(one.cmdline())}


@pytest.mark.server
def test_a_server_is_measured_one_that_cannot_start_is_left_out_and_all_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpath.profiling.experiments.compare.LIMIT_SECONDS", 0.5)
    (photos := tmp_path / "photos").mkdir()
    shutil.copy(BUNDLED / "espresso.jpg", photos)
    result = tmp_path / "result.json"
    load = ["--clients", str(CLIENTS), "--rounds", "1", "--seconds", "0.5", "--warm-up", "0.5"]
    # Java refuses to start with so little memory.
    frail = ["--variant", "frail=torchserve-stock:vmargs+=-Xmx1k"]
    before = list_children()
    with pytest.raises(SystemExit) as ended:
        run(
            ["bench", "compare", "--workload", str(photos), "--servers", SERVER]
            + [*load, *frail, "--json", str(result)]
        )
    assert ended.value.code == 1
    assert "left out after a failure" in capsys.readouterr().err
    assert list_children() <= before
    measured = load_run(result)
    (failure,) = measured.failures
    assert failure.variant == "frail"
    # What its log says, which is the cause.
    assert "Too small maximum heap" in failure.reason
    (workload,) = measured.workloads
    cell, summary = Cell(workload, CLIENTS), Summary(measured)
    assert {name for name in summary.metrics(SERVER, cell)} >= {
        *("elapsed_s", "replies_200", "other_cores", "rate", "latency_ms.p50"),
        *("cpu_s.frontend", "cpu_s.workers", "cpu_s.generator", "cpu_s.other"),
        *("cpu_ms", "rss_mb", "pss_mb", "decode_percent"),
    }
    # Of the handler's scores and plain PyTorch's.
    assert summary.value(SERVER, cell, "answer_difference") < 0.01
    assert summary.value(SERVER, cell, "pss_mb") <= summary.value(SERVER, cell, "rss_mb")
    assert 0 < summary.value(SERVER, cell, "cpu_ms") < 1000
    assert summary.value(SERVER, Cell(), "ready_s") > 0
    assert summary.limits.both(workload) > 0
