"""A document with every kind of part in it."""

from __future__ import annotations

from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    Chart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import Document, Section, format_table, join_blocks


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
