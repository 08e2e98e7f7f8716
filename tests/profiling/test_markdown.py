"""Tables as Markdown."""

from __future__ import annotations

from io import StringIO

from click.testing import CliRunner
from rich.table import Table

from offpath.commands.bench import command
from offpath.profiling.report.old_markdown import MarkdownConsole
from tests.profiling.runs import make_compare


def print_markdown(*objects: object) -> str:
    out = StringIO()
    MarkdownConsole(file=out, width=20).print(*objects)
    return out.getvalue()


def test_a_table_has_its_title_its_rules_and_one_line_a_row():
    table = Table(title="rates | latencies")
    table.add_column("server")
    table.add_column("req/s", justify="right")
    table.add_row("[bold]a server with a long name[/]", "1.0")
    assert print_markdown(table).splitlines() == [
        "**rates \\| latencies**",
        "",
        "| server | req/s |",
        "| --- | ---: |",
        "| a server with a long name | 1.0 |",
        "",
    ]


def test_text_stays_in_one_line_without_markup():
    assert print_markdown("[red]left out:[/] " + "x" * 40) == f"left out: {'x' * 40}\n"


def test_show_prints_a_saved_result_as_markdown(tmp_path):
    path = tmp_path / "result.json"
    make_compare().save(path)
    done = CliRunner().invoke(
        command, ["show", str(path), "--markdown"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "|  | req/s | range | x |" in done.output and "---:" in done.output
