from __future__ import annotations

from io import StringIO

from rich.console import Console

from offpath.profiling.in_process.profile_report import print_profile
from offpath.profiling.in_process.profile_result import BatchSample
from tests.profiling.profiles import (
    make_function,
    make_handler,
    make_line,
    make_profile,
    make_server,
)


def show(*handlers) -> str:
    text = StringIO()
    print_profile(make_profile(*handlers), Console(file=text, width=80))
    return text.getvalue()


def find_cells(shown: str, first: str) -> list[str]:
    return next(
        line.split() for line in shown.splitlines() if line.split()[:1] == [first]
    )


def test_stages_are_shown_with_percentiles_mean_and_share():
    shown = show(make_handler())
    assert find_cells(shown, "decode") == "decode 12.5 17.0 17.0 12.5 68 % 1.56".split()
    assert find_cells(shown, "total")[1:5] == ["18.5", "23.0", "23.0", "18.5"]
    assert "100 batches, 800 images; mean 18.5 ms a batch" in shown


def test_batches_without_stages_are_one_line():
    shown = show(make_handler(batches=[BatchSample(8, 0.016, {})]))
    assert "1 batches, 8 images; mean 16.0 ms a batch, 2.00 an image" in shown
    assert "other" not in shown


def test_the_report_fits_80_columns_without_cutting_a_figure():
    functions = [
        make_function("a_rather_long_function_name_of_somebody", "file I/O", 2.0)
    ]
    shown = show(make_handler(functions=functions), make_server())
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_handlers_of_one_run_are_set_against_the_first():
    shown = show(make_handler(), make_handler("naive", 10))
    assert "naive takes" in shown and "8.57" not in shown
    assert " 9.51 x the time of offpath" in " ".join(shown.split())


def test_buckets_and_the_planted_slow_function_are_shown_by_name():
    functions = [
        make_function("sleep", "other", 2.0),
        make_function("go", "forward", 1.0),
    ]
    shown = show(make_handler(functions=functions))
    assert "sleep" in shown and "handler.py:12" in "".join(shown.split())
    assert find_cells(shown, "forward")[1:] == ["1.00", "33", "%", "100", "1.25"]


def test_the_planted_slow_line_is_shown_with_its_source():
    lines = [make_line(7, 1.0, "    time.sleep(0.01)"), make_line(8, 1e-6, "    pass")]
    shown = show(make_handler(lines=lines))
    assert "time.sleep(0.01)" in shown and "pass" not in shown


def test_a_servers_account_its_doubts_and_its_counts_are_shown():
    shown = show(make_server())
    assert "queue" in shown and "19.5" in shown
    assert "replies a second" in shown and "6.25" in shown
    assert "only 30 batches were counted" in shown


def test_markup_in_names_and_sources_is_shown_as_it_is():
    functions = [make_function("[red]f[/]", "other", 2.0)]
    shown = show(
        make_handler("[b]x", functions=functions, lines=[make_line(1, 1.0, "a[/]")])
    )
    assert "[b]x" in shown and "[red]f[/]" in shown and "a[/]" in shown
