"""What is shown, apart from how: headed sections of tables and charts, all plain data.

`terminal.py`, `markdown.py`, `page.py` and `chart.py` render a document; they know nothing of
where its figures come from. `declared.py` makes one from a run and its declared tables and charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

Point = tuple[float, float]


@dataclass(frozen=True)
class Table:
    """Texts in rows.

    Attributes:
        words: how many columns at the left hold words; the others hold figures.
        has_total: the last row is a sum.
        code: index of a column that holds source code.
        note: stands below it.
        is_wide: on the page, Markdown and in `--json` alone: it does not fit 80 columns.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    has_total: bool = False
    code: int | None = None
    note: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar; `low` and `high` are its spread, `text` its figure in words."""

    label: str
    value: float
    text: str
    is_strong: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars with their figures beside them.

    Attributes:
        unit: below the axis.
        limit: value and name of a dashed line through all bars.
    """

    title: str
    unit: str
    bars: Sequence[Bar]
    limit: tuple[float, str] | None = None


@dataclass(frozen=True)
class StackedBar:
    """One bar of named parts, in their order; `text` stands for its sum."""

    label: str
    parts: Sequence[tuple[str, float]]
    text: str


@dataclass(frozen=True)
class StackedChart:
    """Bars of coloured parts on one scale, or each filling the width where `is_share`."""

    title: str
    unit: str
    bars: Sequence[StackedBar]
    is_share: bool = False


@dataclass(frozen=True)
class Series:
    """A named line; its points are (x, y) and are drawn in their order."""

    name: str
    points: Sequence[Point]
    is_strong: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines with markers; few x values are the ticks of a logarithmic axis.

    Attributes:
        bound: y value and name of a dashed horizontal line.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    bound: tuple[float, str] | None = None


@dataclass(frozen=True)
class Dot:
    """One point of a scatter."""

    x: float
    y: float
    label: str
    is_strong: bool = False


@dataclass(frozen=True)
class ScatterChart:
    """Points; those of `front` (a Pareto front) are joined and numbered in their order.

    Attributes:
        bound: y value and name of a dashed horizontal line.
    """

    title: str
    x_label: str
    y_label: str
    dots: Sequence[Dot]
    front: Sequence[Dot] = ()
    log_y: bool = False
    bound: tuple[float, str] | None = None


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins; p50, p95 and p99 are dashed lines."""

    title: str
    x_label: str
    values: Sequence[float]


@dataclass(frozen=True)
class Span:
    """One row of a waterfall: where it starts and how long it is, in one unit."""

    label: str
    start: float
    length: float
    text: str
    part: str


@dataclass(frozen=True)
class Waterfall:
    """Rows of bars that begin where the work began."""

    title: str
    unit: str
    spans: Sequence[Span]


Chart = Union[BarChart, StackedChart, LineChart, ScatterChart, Histogram, Waterfall]


@dataclass(frozen=True)
class Section:
    """A headed part; `note` says how to read it."""

    heading: str
    parts: Sequence[Table | Chart]
    note: str = ""


@dataclass(frozen=True)
class Document:
    """All that is shown of one run.

    Attributes:
        command: the command line that made the result.
        facts: what stands under the title: host, photographs.
        details: what is shown when asked for: versions, settings.
        warnings: what makes the figures doubtful; shown first.
        headline: the charts that a README or a slide wants, together in one picture (`--plot`).
    """

    title: str
    sections: Sequence[Section]
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    headline: Sequence[Chart] = ()
