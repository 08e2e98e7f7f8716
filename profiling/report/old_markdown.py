"""A result's tables as Markdown, for a README or an issue."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


class MarkdownConsole(Console):
    """Prints tables as Markdown's, and the rest as it is, in unbroken lines."""

    def print(self, *objects: Any, **options: Any) -> None:
        """See rich."""
        for one in objects or ("",):
            text = format_table(one) if isinstance(one, Table) else one
            # A line break of ours would end a table's row.
            super().print(text, soft_wrap=True, highlight=False)


def format_table(table: Table) -> Text:
    """The title in bold, then the table; figures to the right."""
    title = [f"**{plain(table.title)}**", ""] if table.title else []
    head = [plain(column.header) for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*([plain(cell) for cell in column.cells] for column in table.columns))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rules, *rows)]
    return Text("\n".join([*title, *lines, ""]))


def plain(cell: Any) -> str:
    """A cell's text without its colours; Markdown's own bar escaped."""
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    return text.plain.replace("\n", " ").replace("|", "\\|")
