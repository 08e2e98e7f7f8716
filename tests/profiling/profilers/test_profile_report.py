from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from offpath.commands.bench import document_of
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.profilers.collector import BatchSample
from offpath.profiling.report.charts import StackedChart
from offpath.profiling.report.page import render_page
from offpath.profiling.report.terminal import print_document
from tests.profiling.profilers.profiles import (
    add_handler,
    make_batches,
    make_function,
    make_line,
    make_run,
    make_server,
)
from tests.support.documents import read_tables


def show(run: Run) -> str:
    text = StringIO()
    print_document(document_of(run, None), Console(file=text, width=80))
    return text.getvalue()


def find_cells(shown: str, first: str) -> list[str]:
    return next(line.split() for line in shown.splitlines() if line.split()[:1] == [first])


@pytest.fixture
def both() -> Run:
    """Ours, and one that takes ten times as long."""
    return add_handler(add_handler(make_run()), "naive", make_batches(10))


def test_stages_are_shown_with_percentiles_mean_and_share():
    shown = show(add_handler(make_run()))
    assert find_cells(shown, "decode") == "decode 12.5 17.0 17.0 12.5 68 % 1.56".split()
    assert find_cells(shown, "total")[1:5] == ["18.5", "23.0", "23.0", "18.5"]
    assert find_cells(shown, "offpath") == "offpath 100 800 18.5 2.31".split()


def test_batches_without_stages_are_one_line():
    run = add_handler(make_run("flame"), batches=[BatchSample(8, 0.016)])
    shown = show(run)
    assert find_cells(shown, "offpath") == "offpath 1 8 16.0 2.00".split()
    assert "other" not in shown


def test_handlers_of_one_run_are_compared_with_the_first(both):
    shown = show(both)
    assert find_cells(shown, "naive")[-1] == "0.105"
    assert "speed per image relative to offpath" in shown
    document = document_of(both, "naive")
    assert read_tables(document.sections[0].tables)[0][1][-1] == "9.51"


def test_ours_stands_beside_the_baseline_on_one_scale(both):
    document = document_of(both, None)
    (chart,) = [chart for section in document.sections for chart in section.charts]
    assert isinstance(chart, StackedChart) and document.headline == [chart]
    sums = [sum(ms for _, ms in bar.parts) for bar in chart.bars]
    assert sums == pytest.approx([18.5 / 8, 176 / 8])


def test_kinds_of_work_and_the_planted_slow_function_are_shown_by_name():
    functions = [
        make_function("sleep", "other", 2.0),
        make_function("go", "forward", 1.0),
    ]
    run = make_run("cprofile")
    shown = show(add_handler(run, functions=functions))
    assert "sleep (folder/handler.py:12)" in " ".join(shown.split())
    assert find_cells(shown, "forward")[1:] == ["1.25", "33", "%", "100"]


def test_the_planted_slow_line_is_shown_with_its_source_and_cold_ones_are_not():
    lines = [
        make_line(7, 1.0, "    time.sleep(0.01)"),
        make_line(8, 1e-6, "    pass"),
        make_line(9, 0.0, "unused()", function="other", hits=0),
        make_line(10, 1e-6, "cold()", function="cold"),
    ]
    shown = show(add_handler(make_run("lines"), lines=lines))
    assert "preprocess (handler.py): 1,000 ms" in shown
    assert find_cells(shown, "7")[1:] == "100 1,000 100 % time.sleep(0.01)".split()
    assert "pass" not in shown and "unused" not in shown and "cold" not in shown


def test_a_servers_account_its_doubts_and_its_counts_are_shown():
    shown = show(make_server())
    assert find_cells(shown, "queue") == ["queue", "12.0", "62", "%"]
    assert find_cells(shown, "decode")[1:2] == ["5.00"]
    assert find_cells(shown, "total")[1:2] == ["19.5"]
    assert "replies per second" in shown and "6.25" in shown
    assert "only 30 batches were counted" in shown


def test_a_gpus_use_is_shown():
    run = make_server()
    run.add(0, "offpath", Cell("photos", 32), {"gpu.utilisation": 0.5, "gpu.memory_bytes": 3e9})
    shown = " ".join(show(run).split())
    assert "GPU, % busy 50.0" in shown and "GPU memory, MB 3,000" in shown


def test_the_report_fits_80_columns_without_cutting_a_figure(both):
    functions = [make_function("a_rather_long_function_name_of_somebody", "serialise", 2.0)]
    lines = [make_line(7, 1.0, "    time.sleep(0.01)  # " + "why " * 40)]
    add_handler(both, "third", functions=functions, lines=lines)
    for shown in (show(both), show(make_server())):
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown


@pytest.mark.parametrize("kind", ["flame", "server"])
def test_a_page_names_command_host_images_time_and_versions(kind):
    run = make_server() if kind == "server" else add_handler(make_run(kind))
    page = render_page(document_of(run, None))
    for said in (
        "offpath profile stages --handler offpath --handler naive",
        "some, 2 cores",
        "32 photographs of 55 kB mean",
        "2026-01-01 00:00:00 UTC",
        "torch 2.14.1",
    ):
        assert said in page
