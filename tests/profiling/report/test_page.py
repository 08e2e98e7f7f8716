from __future__ import annotations

import pytest

from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    Chart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import (
    Document,
    Section,
    format_markdown,
    format_table,
    join_blocks,
)
from offpath.profiling.report.page import render_page
from tests.support.guarantees import guarantee
from tests.support.pages import list_requests, read_page

HOSTILE = '<script>alert("x")</script> & {{ 7919 * 7919 }} $a$'


def make_charts(name: str = "offpath") -> list[Chart]:
    """Makes one chart of each kind; every text is `name`."""
    lines = [Series(name, [(1, 2), (2, 3)], True), Series("b", [(1, 1), (2, 5)])]
    return [
        BarChart(name, name, [Bar(name, 2, name, True, 1, 3)], (4, name)),
        StackedChart(name, name, [StackedBar(name, [("decode", 1.0)], name)]),
        LineChart(name, name, name, lines, log_x=True, bound=(2, name)),
    ]


def make_document(name: str = "offpath") -> Document:
    """Makes a document with tables and charts of every kind; every text is `name`."""
    tables = join_blocks(
        format_table(["name", "ms"], [[name, "1"], ["total", "1"]], title=name, has_total=True),
        format_table(["line", "source"], [["1", f"    {name}"]], note=name, words=0, code=1),
    )
    charts = make_charts(name)
    return Document(
        title=name,
        sections=[Section(name, tables, charts, name)],
        command=name,
        facts={name: name},
        details={name: name},
        warnings=[name],
        headline=charts[:1],
    )


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(make_document())


def test_a_page_loads_nothing_from_anywhere(page: str) -> None:
    assert list_requests(page) == []


@guarantee(
    "Script or escapes in pages and names",
    "profiling/report/page.py",
    "autoescape=True,",
    "autoescape=False,",
)
def test_names_cannot_write_markup_or_templates() -> None:
    html = render_page(make_document(HOSTILE))
    reader = read_page(html)
    assert "<script" not in html and "62710561" not in html
    # In the title, the tables and the charts alike, and no chart takes it for a formula.
    assert sum(HOSTILE in text for text in reader.texts) > 15


def test_every_picture_says_in_words_what_it_shows(page: str) -> None:
    drawings = page.split("<svg")[1:]
    assert len(drawings) == 3
    assert all('role="img" aria-label="offpath"' in p.split(">")[0] for p in drawings)


def test_markdown_is_a_table_with_its_command_first() -> None:
    table = format_table(["", "req/s", "failed"], [["a|b", "12,345", "3 x 503"]])
    document = Document("t", [Section("Speed", table)], command="offpath bench")
    lines = format_markdown(document).splitlines()
    assert lines[0] == "    offpath bench"
    assert "| --- | ---: | ---: |" in lines
    assert "| a\\|b | 12,345 | 3 x 503 |" in lines
