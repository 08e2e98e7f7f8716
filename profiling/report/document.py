"""A document: headed sections of tables and charts, as plain data.

`terminal.py`, `markdown.py`, `page.py` and `pictures.py` render a document without knowing where
its figures come from. `declared.py` makes a document from a declared report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offpath.profiling.report.charts import Chart


@dataclass(frozen=True)
class Table:
    """Texts in rows.

    Attributes:
        words: number of columns at the left that hold words; the others hold figures.
        has_total: the last row is a sum.
        code: index of a column that holds source code.
        note: text below the table.
        is_wide: left out of the terminal, because it does not fit 80 columns.
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
class Section:
    """A headed part of a document; `note` says how to read it."""

    heading: str
    parts: Sequence[Table | Chart]
    note: str = ""


@dataclass(frozen=True)
class Document:
    """Everything that is shown of one run or calculation.

    Attributes:
        command: the command line that made the result.
        facts: short facts under the title: host, workloads.
        details: facts shown on demand: versions, settings.
        warnings: reasons to doubt the figures, as `KIND: text` or plain text.
        headline: the charts of `--plot`, for a README or a slide.
        pages: whole HTML pages by title, such as flame graphs, which the page shows as frames.
    """

    title: str
    sections: Sequence[Section]
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    headline: Sequence[Chart] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
