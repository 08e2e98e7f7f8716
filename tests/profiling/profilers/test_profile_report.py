from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from offpath.commands.bench import document_of
from offpath.profiling.core.run import Run
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


def test_handlers_of_one_run_are_compared_with_the_first(both):
    shown = show(both)
    assert find_cells(shown, "naive")[-1] == "0.105"
    assert "speed per image relative to offpath" in shown
    document = document_of(both, "naive")
    assert read_tables(document.sections[0].tables)[0][1][-1] == "9.51"


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


def test_the_report_fits_80_columns_without_cutting_a_figure(both):
    functions = [make_function("a_rather_long_function_name_of_somebody", "serialise", 2.0)]
    lines = [make_line(7, 1.0, "    time.sleep(0.01)  # " + "why " * 40)]
    add_handler(both, "third", functions=functions, lines=lines)
    for shown in (show(both), show(make_server())):
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown
