from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.report.plot import save_plot
from offpath.profiling.report.report import print_report
from tests.profiling.results import make_result


def test_the_plot_is_the_same_file_each_time(tmp_path):
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    save_plot(make_result(), "torchserve-stock", first)
    save_plot(make_result(), "torchserve-stock", second)
    assert first.read_bytes() == second.read_bytes()
    assert b"<svg" in first.read_bytes()


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ExpectedError, match=r"\.svg or \.png"):
        save_plot(make_result(), None, tmp_path / "a.gif")


def test_the_report_fits_80_columns_without_cutting_a_figure():
    text = StringIO()
    print_report(make_result(), "torchserve-stock", Console(file=text, width=80))
    shown = text.getvalue()
    assert "10.91" in shown and "120.0" in shown and "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
