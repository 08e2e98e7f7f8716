from __future__ import annotations

import pytest

from offpath.profiling.report.old_page import (
    Bar,
    Dot,
    Section,
    Series,
    Span,
    StackedBar,
    assign_colours,
    bar_chart,
    histograms,
    join,
    legend,
    line_chart,
    pareto_front,
    render_page,
    scatter,
    stacked_bars,
    table,
    waterfall,
    write_html,
)
from tests.support.pages import find_browser, list_requests, measure_widths, read_page

HOSTILE = '<script>alert("x")</script> & {{ 7919 * 7919 }}'
LONG = "a_name_without_any_place_to_break_it_" * 4


def make_everything(name: str = "offpath") -> str:
    colours = assign_colours(["decode", name])
    dots = [Dot(n, n * n, f"{name} {n}", strong=n == 3) for n in range(1, 6)]
    parts = [
        table(
            ["name", "ms"], [[name, "1"], ["total", "1"]], caption=name, total_row=True
        ),
        table(["line", "source"], [["1", f"    {name}"]], left=0, code=1),
        bar_chart([Bar(name, 2, "2", True, 1, 3)], label=name, limit=(4, name)),
        legend(colours)
        + stacked_bars(
            [StackedBar(name, [("decode", 1.0)], name)], colours, label=name
        ),
        waterfall([Span(name, 0, 1, "1 ms", "s0")], caption=name),
        line_chart(
            [Series(name, [(1, 2), (2, 3)]), Series("b", [(1, 1)])],
            name,
            name,
            title=name,
        ),
        scatter(
            dots, name, name, title=name, front=pareto_front(dots), bound=(9, name)
        ),
        *histograms({name: [1.0, 2.0, 3.0]}, name, name),
    ]
    return render_page(
        name,
        [Section(name, join(parts), name)],
        command=name,
        facts={name: name},
        details={name: name},
        warnings=[name],
    )


def test_a_page_loads_nothing_from_anywhere():
    assert list_requests(make_everything()) == []


def test_names_cannot_write_markup_or_templates():
    html = make_everything(HOSTILE)
    reader = read_page(html)
    assert "<script" not in html and "62710561" not in html
    assert any(HOSTILE in text for text in reader.texts)


def test_every_picture_says_in_words_what_it_shows():
    html = make_everything()
    assert html.count('<svg class="plot"') == html.count('<svg class="plot" viewBox')
    for part in html.split('role="img"')[1:]:
        assert part.lstrip().startswith('aria-label="')


def test_a_page_follows_dark_mode_and_the_width_of_a_phone():
    html = make_everything()
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport" content="width=device-width' in html


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(tmp_path, width):
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed")
    inner, needed = measure_widths(browser, make_everything(LONG), tmp_path, width)
    assert inner == width
    assert needed <= inner


def test_a_page_is_written_with_its_folder(tmp_path):
    write_html("<p>ü</p>", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == "<p>ü</p>"
