"""Reports by declaration: a report names its tables and charts once, every renderer shows them.

A report is declared for a kind of source: a calculation, a search, or a run on one workload
(`measured.View`). A declared table or chart is a function from the source to tables and charts.
`TableSpec` makes such a function of columns, each of which makes a text of a row:

    Parts = list[tuple[str, float]]

    def list_parts(parts: Parts) -> Parts:
        return parts

    def draw_parts(parts: Parts) -> list[Chart]:
        return [BarChart("Time by part", "ms", [Bar(name, ms, f"{ms:.1f}") for name, ms in parts])]

    TIMES: TableSpec[Parts, tuple[str, float]] = TableSpec(
        "milliseconds by part",
        list_parts,
        (Column("", lambda part: part[0]), Column("ms", lambda part: f"{part[1]:.1f}")),
    )
    REPORT: Report[Parts] = Report(
        "Where the time goes",
        (Part("Parts", (draw_parts, TIMES), "Means of all requests."),),
        headline=(draw_parts,),
    )
    document = make_document(REPORT, {"": [("decode", 2.0), ("forward", 1.0)]})

`measured.py` has tables and charts that need only the names of metrics; `make_run_document` there
shows a run. A chart of a new kind is a subclass of `charts.Chart`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, Union

from offpath.profiling.report.charts import Chart
from offpath.profiling.report.document import Document, Section, format_table, join_blocks

Source = TypeVar("Source")
Element = TypeVar("Element")
Row = TypeVar("Row")

Text = Union[str, Callable[[Source], str]]
Show = Callable[[Source], Iterable[Union[str, Chart]]]
Draw = Callable[[Source], Iterable[Chart]]


def write(text: Text[Source], source: Source) -> str:
    """Returns a text, which is either fixed or made of the source."""
    return text(source) if callable(text) else text


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes:
        text: makes the text of one row; empty where nothing was measured.
        is_factor: names the row, and is left out where it is the same in all rows.
    """

    title: str
    text: Callable[[Row], str]
    is_factor: bool = False


@dataclass(frozen=True)
class TableSpec(Generic[Source, Row]):
    """A declared table.

    Attributes:
        rows: lists the rows of a source.
        words, has_total, code, note: see `document.format_table`.
    """

    title: Text[Source]
    rows: Callable[[Source], Iterable[Row]]
    columns: Sequence[Column[Row]]
    words: int = 1
    has_total: bool = False
    code: int | None = None
    note: Text[Source] = ""

    def __call__(self, source: Source) -> list[str]:
        """Makes the table of one source; an empty list where nothing was measured."""
        rows = list(self.rows(source))
        columns = [
            one
            for one in self.columns
            if not one.is_factor or len({one.text(row) for row in rows}) > 1
        ]
        table = format_table(
            [one.title for one in columns],
            [[one.text(row) for one in columns] for row in rows],
            title=write(self.title, source),
            note=write(self.note, source),
            words=self.words + sum(one.is_factor for one in columns),
            code=self.code,
            has_total=self.has_total,
        )
        return [table] if table else []


def each(split: Callable[[Source], Iterable[Element]], show: Show[Element]) -> Show[Source]:
    """Declares a table or chart that is shown for each element of the source."""
    return lambda source: [shown for one in split(source) for shown in show(one)]


@dataclass(frozen=True)
class Part(Generic[Source]):
    """A headed part of a report; `note` says how to read it."""

    heading: str
    shows: Sequence[Show[Source]]
    note: Text[Source] = ""
    is_wide: bool = False

    def make(self, name: str, source: Source) -> list[Section]:
        """Makes the section of one source; an empty list where nothing was measured."""
        parts = [shown for show in self.shows for shown in show(source)]
        if not parts:
            return []
        tables = join_blocks(*(one for one in parts if isinstance(one, str)))
        charts = [one for one in parts if isinstance(one, Chart)]
        note = write(self.note, source)
        return [Section(join(name, self.heading), tables, charts, note, self.is_wide)]


@dataclass(frozen=True)
class Report(Generic[Source]):
    """Everything that is shown of one kind of source.

    Attributes:
        headline: the charts of `--plot`.
    """

    title: str
    parts: Sequence[Part[Source]]
    headline: Sequence[Draw[Source]] = ()


def join(name: str, text: str) -> str:
    """Returns `name: text`, or the one of the two that is not empty."""
    return ": ".join(filter(None, (name, text)))


def make_document(
    report: Report[Source], sources: Mapping[str, Source], warnings: Sequence[str] = ()
) -> Document:
    """Makes the document of one or several sources.

    Args:
        sources: name that stands before each heading (or "") -> source.
    """
    return Document(
        report.title,
        [
            made
            for name, source in sources.items()
            for part in report.parts
            for made in part.make(name, source)
        ],
        warnings=warnings,
        headline=[
            replace(chart, title=join(name, chart.title))
            for name, source in sources.items()
            for draw in report.headline
            for chart in draw(source)
        ],
    )
