"""`offpath logs report`: compares two sets of the prediction log's records, and shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from offpath.commands.declared_options import option, takes_options
from offpath.commands.progress import counting_bar
from offpath.commands.run_outputs import PAGE_HELP, check_output, command_line
from offpath.commands.shared_options import FILE
from offpath.errors import ExpectedError
from offpath.profiling.core.figures import format_figure, format_share
from offpath.profiling.report.document import Document, Section, format_table
from offpath.serving.prediction_log.log_report import (
    Table,
    compare_sets,
    parse_set,
)
from offpath.serving.prediction_log.reading import describe_damage
from offpath.serving.printable import printable

JSON_HELP = "JSON to stdout."
# Table -> its heading, and how many of its columns are texts.
SECTIONS = {
    "sets": ("Records", 2),
    "distances": ("Distances of B from A", 2),
    "disagreements": ("Different answers to the same request", 2),
    "errors": ("Errors", 1),
    "labels": ("Labels whose share moved most", 1),
    "spreads": ("Best score, sizes and times", 1),
    "figures": ("Figures", 1),
}
NOTES = {
    "distances": "PSI is the population stability index: 0 for equal distributions; by custom, from"
    " 0.1 on a change is moderate, from 0.25 on large. Noise is what 95 % of samples of these sizes"
    " stay below if nothing has changed, so a PSI below it shows no change. Scores and payloads are"
    " in bins that hold a tenth of A each.",
    "disagreements": "Pairs are a record in A and one in B with the same event id (up to a ~).",
    "spreads": "Times are of the whole batch that a request was in. Percentiles are approximate.",
}


@click.command("report")
@takes_options
def report(
    text_a: str = option(
        "Records to compare with: a URI, and filters after commas as in"
        " s3://BUCKET/PREFIX,since=14d,until=7d,model=NAME,version=2.0. Each filter may be left"
        " out.",
        "--a",
        required=True,
        metavar="SET",
    ),
    text_b: str = option(
        "Records that are compared; without a URI, those under --a's.",
        "--b",
        required=True,
        metavar="SET",
    ),
    html_path: Path | None = option(PAGE_HELP, "--html", type=FILE),
    as_json: bool = option(JSON_HELP, "--json"),
) -> None:
    """Compare two sets of records: two periods, two versions, a shadow and its original.

    Shows requests, errors, labels, scores, payload sizes and stage times side by side, how far B's
    distributions are from A's, and how often the two answered a request differently. Needs
    'torchserve-offpath[report]'. Records wait in a temporary database: set TMPDIR to a disk with
    room.

    \b
    Examples:
      # Did last week's images differ from those of the week before?
      offpath logs report --a s3://bucket/predictions,since=14d,until=7d --b since=7d
      # Does the new version answer as the old one does?
      offpath logs report --a file:///var/log/offpath,version=1.0 --b version=2.0 --html report.html
      # From cron
      offpath logs report --a ... --b ... --json > a.json && jq -e '.figures.label_psi < 0.2' a.json
    """
    first = parse_set(text_a)
    sets = {"a": first, "b": parse_set(text_b, first.uri)}
    check_output(html_path, "jinja2", "report")
    damage: list[str] = []
    with counting_bar("reading objects", not as_json) as progress:
        tables = compare_sets(sets, progress, damage.append)
    named = {"A": text_a, "B": text_b}
    (figures,) = tables["figures"]
    document = _make_document(tables, named, len(damage))
    if html_path is not None:
        from offpath.profiling.report.page import write_page

        write_page(document, html_path)
    if as_json:
        click.echo(json.dumps({"named": named, **tables, "figures": figures, "damage": damage}))
    else:
        for side, text in named.items():
            click.echo(printable(f"{side} {text}"))
        from offpath.profiling.report.terminal import print_document

        print_document(document, Console())
        if html_path is not None:
            click.echo(f"page: {html_path}")
    empty = [side for side in sets if not figures[f"requests_{side}"]]
    problems = [f"no records in --{side}, so nothing is compared" for side in empty]
    problems += [describe_damage(damage)] if damage else []
    if problems:
        raise ExpectedError("\n".join(problems))


def _make_document(tables: Mapping[str, Table], named: dict[str, str], damaged: int) -> Document:
    (figures,) = tables["figures"]
    listed = [{"figure": name, "value": value} for name, value in figures.items()]
    rows = {**tables, "figures": listed}
    sections = [
        Section(heading, _format(rows[name], words), note=NOTES.get(name, ""))
        for name, (heading, words) in SECTIONS.items()
    ]
    lost = [f"{damaged} objects or lines cannot be read"] if damaged else []
    return Document("Prediction log: A and B", sections, command_line(), named, {}, lost)


def _format(rows: Table, words: int) -> str:
    """Formats the rows of a query, of which the first `words` columns are texts."""

    def format_cell(name: str, value: Any) -> str:
        if isinstance(value, float):
            return format_share(value) if "share" in name else format_figure(value)
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    columns = [name.replace("_", " ") for name in rows[0]] if rows else []
    cells = ([format_cell(*cell) for cell in row.items()] for row in rows)
    return format_table(columns, cells, words=words)
