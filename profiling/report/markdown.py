"""Renders a document as Markdown: tables for a README or an issue."""

from __future__ import annotations

from offpath.profiling.report.document import Document, Table
from offpath.serving.printable import printable_lines


def format_markdown(document: Document) -> str:
    """Returns the command line, the sections with tables, and the warnings."""
    blocks = [f"    {document.command}"] if document.command else []
    for section in document.sections:
        tables = [part for part in section.parts if isinstance(part, Table)]
        if not tables:
            continue
        blocks.append(f"### {section.heading}")
        blocks += [block for table in tables for block in format_blocks(table)]
        if section.note:
            blocks.append(section.note)
    blocks += [f"> {warning}" for warning in document.warnings]
    return printable_lines("\n\n".join(blocks) + "\n")


def format_blocks(table: Table) -> list[str]:
    """Returns a table with its title before it and its note after it."""
    return [text for text in (table.title, format_table(table), table.note) if text]


def format_table(table: Table) -> str:
    """Returns a table with words aligned left and figures aligned right."""
    is_word = [n < table.words or n == table.code for n in range(len(table.columns))]
    lines = [
        table.columns,
        ["---" if word else "---:" for word in is_word],
        *table.rows,
    ]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
