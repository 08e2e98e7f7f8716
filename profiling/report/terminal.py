"""Prints a document in a terminal: its tables within 80 columns, then its warnings."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from offpath.profiling.report.document import Document, Section, Table
from offpath.serving.printable import printable_lines


def make_text(text: str, style: str = "") -> RichText:
    """Returns a text for rich. A name in a result of strangers may hold what terminals obey."""
    return RichText(printable_lines(text), style)


def print_document(document: Document, console: Console) -> None:
    """Prints every section that has tables, then the warnings."""
    for section in document.sections:
        print_section(section, console)
    for warning in document.warnings:
        console.print(make_text(warning, "yellow"))


def print_section(section: Section, console: Console) -> None:
    """Prints heading, tables and note; a section without tables is for the page alone."""
    tables = [
        part for part in section.parts if isinstance(part, Table) and not part.is_wide and part.rows
    ]
    if not tables:
        return
    console.print(make_text(section.heading, "bold"))
    for table in tables:
        console.print(make_table(table))
        if table.note:
            console.print(make_text(table.note))
    if section.note:
        console.print(make_text(section.note, "dim"))
    console.print()


def make_table(table: Table) -> RichTable:
    """Returns the table for rich; words fold where they must, figures never."""
    drawn = RichTable(
        title=make_text(table.title) if table.title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    for index, column in enumerate(table.columns):
        is_word = index < table.words or index == table.code
        drawn.add_column(
            make_text(column),
            justify="left" if is_word else "right",
            no_wrap=not is_word,
            overflow="fold",
        )
    for number, row in enumerate(table.rows, start=1):
        if table.has_total and number == len(table.rows):
            drawn.add_section()
        drawn.add_row(*map(make_text, row))
    return drawn
