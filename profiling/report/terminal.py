"""Prints a report in a terminal, within 80 columns."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table

from offpath.profiling.report.document import Document, format_markdown


class WholeTable(TableElement):
    """A table whose words fold where they must; figures are never cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.padding, table.show_edge = (0, 0, 0, 1), False
                for column in table.columns:
                    column.overflow = "fold"
                    column.no_wrap = getattr(column.header, "justify", None) == "right"
            yield table


class Report(Markdown):
    """Rich's Markdown with our tables."""

    elements = {**Markdown.elements, "table_open": WholeTable}


def print_document(document: Document, console: Console) -> None:
    """Prints every section that has tables, then the warnings."""
    text = format_markdown(document, is_narrow=True)
    if text:
        console.print(Report(text))
