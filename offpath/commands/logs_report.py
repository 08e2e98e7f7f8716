"""`offpath logs report`: compares two sets of the prediction log's records, and shows it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from offpath.commands.progress import counting_bar
from offpath.commands.run_outputs import FILE, check_output, command_line
from offpath.commands.shared_options import json_option
from offpath.errors import ExpectedError, WrongOption
from offpath.profiling.core.figures import format_figure, format_share
from offpath.profiling.report.document import Document, Section, format_table
from offpath.serving.log_tools.log_report import (
    FIGURES,
    Comparison,
    Count,
    compare_sets,
    parse_set,
    sum_counts,
)
from offpath.serving.log_tools.reading import describe_damage
from offpath.serving.printable import printable

CONDITION = re.compile(r"\s*([\w.]+)\s*([<>])\s*(\S+)\s*")
LISTED_LABELS = 15
# From this PSI on, the word for a distance is used.
WORDS = {0.25: "large", 0.1: "moderate", 0.0: "small"}
HOW_TO_READ = (
    "PSI is the population stability index: 0 for equal distributions; by custom, from 0.1 on a"
    " change is moderate, from 0.25 on large. Noise is what 95 % of samples of these sizes stay"
    " below if nothing has changed, so a PSI below it shows no change. Scores and payloads are in"
    " bins that hold a tenth of A each."
)


def parse_condition(text: str) -> tuple[str, str, float]:
    """Parses a condition of --fail-if; raises WrongOption for any other form."""
    found = CONDITION.fullmatch(text)
    if found is None:
        raise WrongOption(
            f"--fail-if {text!r}: expected METRIC, > or <, and a number, as in 'label_psi>0.2'"
        )
    metric, sign, bound = found.groups()
    if metric not in FIGURES:
        raise WrongOption(
            f"--fail-if {text!r}: no metric {metric!r}; there are: {', '.join(FIGURES)}"
        )
    try:
        return metric, sign, float(bound)
    except ValueError:
        raise WrongOption(f"--fail-if {text!r}: {bound!r} is not a number") from None


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
    help="Write one self-contained page.",
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="FIGURE>N",
    help="For cron: exit with 1 where the condition holds or its figure is not known. Can be"
    f" repeated. Figures: {', '.join(FIGURES)}; comparison: > or <. A PSI within its noise"
    " meets no condition with >.",
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
      offpath logs report --a ... --b ... --fail-if 'label_psi>0.2' --fail-if 'requests_b<1000'
    """
    wanted = {text: parse_condition(text) for text in conditions}
    first = parse_set(text_a)
    sets = {"a": first, "b": parse_set(text_b, first.uri)}
    check_output(html_path, "jinja2", "report")
    damage: list[str] = []
    with counting_bar("reading objects", not as_json) as progress:
        compared = compare_sets(sets, progress, damage.append)
    lost = [f"{len(damage)} objects or lines cannot be read"] if damage else []
    named = {"a": text_a, "b": text_b}
    document = make_document(compared, named, command_line(), lost)
    if html_path is not None:
        from offpath.profiling.report.page import write_page

        write_page(document, html_path)
    if as_json:
        content = {"named": named, **dataclasses.asdict(compared), "damage": damage}
        click.echo(json.dumps(content))
    else:
        for side, text in document.facts.items():
            click.echo(printable(f"{side} {text}"))
        click.echo()
        from offpath.profiling.report.terminal import print_document

        print_document(document, Console())
        if html_path is not None:
            click.echo(f"page: {html_path}")
    met = [why for text, one in wanted.items() if (why := _judge(text, *one, compared))]
    problems = [f"--fail-if {'; '.join(met)}"] if met else []
    empty = [side for side, it in compared.sets.items() if not it["records"]]
    problems += [f"no records in --{side}, so nothing is compared" for side in empty]
    problems += [describe_damage(damage)] if damage else []
    if problems:
        raise ExpectedError("\n".join(problems))


def _judge(text: str, metric: str, sign: str, bound: float, compared: Comparison) -> str | None:
    """Returns why a condition is met, or None."""
    value = compared.figures[metric]
    if value is None:
        return f"{text}: not known, because there are no such records"
    distance = compared.distances.get(metric.removesuffix("_psi"))
    is_chance = distance is not None and distance["psi"] <= distance["noise"]
    is_met = value < bound if sign == "<" else value > bound and not is_chance
    return f"{text}: {format_figure(value)}" if is_met else None


def make_document(
    compared: Comparison, named: Mapping[str, str], command: str, lost: Sequence[str]
) -> Document:
    """Makes the report of a comparison of the sets that the user named `a` and `b`."""
    sections = [
        Section("Distances of B from A", _show_distances(compared), note=HOW_TO_READ),
        *_show_pairs(compared),
        Section("Requests and errors", _show_errors(compared)),
        Section("Labels", _show_labels(compared)),
        Section("Best score, sizes and times", _show_spreads(compared)),
    ]
    facts = {side.upper(): _describe(compared, side, named[side]) for side in "ab"}
    return Document("Prediction log: A and B", sections, command, facts, {}, lost)


def _describe(compared: Comparison, side: str, named: str) -> str:
    one = compared.sets[side]
    versions = ", ".join(f"{name}: {n:,}" for name, n in one["versions"].items())
    if not versions:
        return f"{named}: no records"
    return f"{named}: {one['records']:,} records, {one['first']} to {one['last']} ({versions})"


def _show_distances(compared: Comparison) -> str:
    columns = ["", "change", "PSI", "noise", "bins", "values in A", "values in B"]
    rows = []
    for name, one in compared.distances.items():
        word = next(word for bound, word in WORDS.items() if one["psi"] >= bound)
        change = word if one["psi"] > one["noise"] else "within noise"
        sizes = (f"{one[key]:,}" for key in ("bins", "values_a", "values_b"))
        rows.append([name, change, format_figure(one["psi"]), format_figure(one["noise"]), *sizes])
    return format_table(columns, rows, words=2)


def _show_counts(title: str, counts: Sequence[Count], totals: Sequence[int]) -> str:
    rows = [
        [
            str(name),
            *(f"{number:,}" for number in numbers),
            *(format_share(n / total) if total else "" for n, total in zip(numbers, totals)),
        ]
        for name, *numbers in counts
    ]
    return format_table(["", "A", "B", "share A", "share B"], rows, title=title)


def _show_errors(compared: Comparison) -> str:
    requests = [one["records"] for one in compared.sets.values()]
    good = sum_counts(compared.labels)
    counts: list[Count] = [("requests", *requests), ("predictions", *good)]
    return _show_counts("", [*counts, *compared.errors], requests)


def _show_labels(compared: Comparison) -> str:
    labels, totals = compared.labels, sum_counts(compared.labels)
    n_a, n_b = (max(total, 1) for total in totals)
    moved = sorted(labels, key=lambda one: -abs(one[1] / n_a - one[2] / n_b))
    return _show_counts("labels whose share moved most", moved[:LISTED_LABELS], totals)


def _show_spreads(compared: Comparison) -> str:
    columns = [f"{side} {what}" for side in "AB" for what in ("mean", "p50", "p95")]
    rows = [
        [name, *("" if one is None else format_figure(one) for one in (*a[:3], *b[:3]))]
        for name, (a, b) in ((n, sides.values()) for n, sides in compared.spreads.items())
    ]
    note = "Times are of the whole batch that a request was in. Percentiles are approximate."
    return format_table(["", *columns], rows, note=note)


def _show_pairs(compared: Comparison) -> Iterator[Section]:
    pairs = int(compared.figures["pairs"] or 0)
    if not pairs:
        return
    rows = [[a, b, f"{n:,}", format_share(n / pairs)] for a, b, n in compared.disagreements]
    note = (
        f"{pairs:,} pairs of a record in A and one in B have the same event id (up to a ~)."
        f" {format_share(compared.figures['disagreement'] or 0.0)} of them disagree."
    )
    table = format_table(["A", "B", "pairs", "share"], rows, words=2)
    yield Section("Answers to the same request", table, note=note)
