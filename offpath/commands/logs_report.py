"""`offpath logs report`: compares two sets of the prediction log's records."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from offpath.commands.progress import counting_bar
from offpath.commands.run_outputs import FILE, check_output, command_line
from offpath.commands.shared_options import json_option
from offpath.errors import ExpectedError, WrongOption
from offpath.profiling.core.figures import format_figure
from offpath.serving.log_tools.comparing import FIGURES
from offpath.serving.printable import printable

if TYPE_CHECKING:
    from offpath.profiling.core.threshold import Threshold
    from offpath.serving.log_tools.comparing import Comparison


@click.command("report")
@click.option(
    "--a",
    "text_a",
    required=True,
    metavar="SET",
    help="Records to compare with: a URI, and filters after commas as in"
    " s3://BUCKET/PREFIX,since=14d,until=7d,model=NAME,version=2.0. Each filter may be left out.",
)
@click.option(
    "--b",
    "text_b",
    required=True,
    metavar="SET",
    help="Records that are compared; without a URI, those under --a's.",
)
@click.option(
    "--html",
    "html_path",
    type=FILE,
    help="Write one self-contained page with charts.",
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="FIGURE>N",
    help="For cron: exit with 1 where the condition holds or its figure is not known. Can be"
    f" repeated. Figures: {', '.join(FIGURES)}; comparison: > >= < <= == !=. A PSI that is within"
    " its noise meets no condition with > or >=.",
)
@json_option("JSON to stdout.")
def report(
    text_a: str,
    text_b: str,
    html_path: Path | None,
    conditions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare two sets of records: two periods, two versions, a shadow and its original.

    Shows requests, errors, labels, scores, payload sizes and stage times side by side, how far B's
    distributions are from A's, and which requests the two answered differently. Needs
    'torchserve-offpath[report]'. Records wait in a temporary database: set TMPDIR to a disk with
    room.

    \b
    Examples:
      # Did last week's images differ from those of the week before?
      offpath logs report --a s3://bucket/predictions,since=14d,until=7d --b since=7d
      # Does the new version answer as the old one does?
      offpath logs report --a file:///var/log/offpath,version=1.0 --b version=2.0 --html report.html
      # From cron
      offpath logs report --a ... --b ... --fail-if 'label_psi>0.2' --fail-if 'requests_b<1000'
    """
    from offpath.profiling.core.threshold import parse_threshold
    from offpath.serving.log_tools.comparing import compare_sets
    from offpath.serving.log_tools.reading import describe_damage, open_store_at
    from offpath.serving.log_tools.record_sets import load_sets, parse_set

    try:
        thresholds = [parse_threshold(text, FIGURES, "label_psi>0.2") for text in conditions]
    except ValueError as error:
        raise WrongOption(f"--fail-if {error}") from None
    first = parse_set(text_a)
    sets = {"a": first, "b": parse_set(text_b, first.uri)}
    check_output(html_path, "jinja2", "report")
    damage: list[str] = []
    with counting_bar("reading objects", not as_json) as progress:
        with load_sets(sets, open_store_at, progress, damage.append) as database:
            compared = compare_sets(database)
    _show(compared, {"a": text_a, "b": text_b}, damage, html_path, as_json)
    met = [said for one in thresholds if (said := _judge(one, compared))]
    problems = [f"--fail-if {'; '.join(met)}"] if met else []
    empty = [side for side, it in compared.sets.items() if not it["records"]]
    problems += [f"no records in --{side}, so nothing is compared" for side in empty]
    problems += [describe_damage(damage)] if damage else []
    if problems:
        raise ExpectedError("\n".join(problems))


def _show(
    compared: Comparison,
    named: dict[str, str],
    damage: list[str],
    html_path: Path | None,
    as_json: bool,
) -> None:
    from offpath.profiling.report.log_report import make_log_document
    from offpath.profiling.report.terminal import print_document

    lost = [f"{len(damage)} objects or lines cannot be read"] if damage else []
    document = make_log_document(compared, named, command_line(), lost)
    if html_path is not None:
        from offpath.profiling.report.page import write_page

        write_page(document, html_path)
    if as_json:
        content = {"named": named, **dataclasses.asdict(compared), "damage": damage}
        click.echo(json.dumps({**content, "warnings": document.warnings}))
        return
    for side, text in document.facts.items():
        click.echo(printable(f"{side} {text}"))
    click.echo()
    print_document(document, Console())
    if html_path is not None:
        click.echo(f"page: {html_path}")


def _judge(one: Threshold, compared: Comparison) -> str | None:
    """Returns why a threshold is met, or None."""
    value = compared.figures[one.metric]
    if value is None:
        return f"{one.text}: not known, because there are no such records"
    distance = compared.distances.get(one.metric.removesuffix("_psi"))
    is_chance = distance is not None and distance.psi <= distance.noise
    if (is_chance and ">" in one.sign) or not one.is_met(value):
        return None
    return f"{one.text}: {format_figure(value)}"
