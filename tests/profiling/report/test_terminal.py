from __future__ import annotations

import io

from rich.console import Console

from offpath.profiling.report.document import Document, Section, format_markdown, format_table
from offpath.profiling.report.terminal import print_document

SPEED = format_table(
    ["", "req/s", "failed"],
    [["offpath", "76.0", "0"], ["a|b", "12,345", "3 x 503"]],
    title="speed",
    note="medians",
)


def print_text(document: Document, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_document(document, console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_figures_are_never_cut_at_80_columns_long_names_fold() -> None:
    columns = ["", *(f"p{n} ms" for n in range(8))]
    row = ["a-server-with-a-very-long-name-indeed", *["123,456"] * 8]
    text = print_text(Document("t", [Section("s", format_table(columns, [row]))]))
    assert text.count("123,456") == 8
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_markdown_is_a_table_with_its_command_first() -> None:
    document = Document("t", [Section("Speed", SPEED)], command="offpath bench")
    lines = format_markdown(document).splitlines()
    assert lines[0] == "    offpath bench"
    assert "| --- | ---: | ---: |" in lines
    assert "| a\\|b | 12,345 | 3 x 503 |" in lines
