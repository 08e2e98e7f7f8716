"""Keeps the measured figures in documents equal to the results that they quote.

usage: python scripts/figures.py [--write]

docs/figures.yaml says for each page where its figures come from. Without --write, the script exits
with 1 and names each line that differs from its result, and each figure of speed, memory or loss
in README.md that comes from no result. With --write it mends the figures.

An entry with `text` quotes a sentence or a row of a table, with {} for each figure, and names the
results of these figures in their order:

    - text: "answered {} ({} to {}) per second, and all {} are in the log"
      from:
        - direct-1200k offpath-granian-direct rate rate.low rate.high
        - kills-granian /: (\\d+) answered/

A JSON result in profiling/results is followed by a server (in quotes if it has spaces), by a
workload or `@CLIENTS` where there are several, and by keys: `x/SERVER` (the median of the rounds'
ratios of rates), `p99` and other percentiles, or a metric of `offpath bench show`, also with
`.low` or `.high`. A text is followed by a regular expression, whose groups are the figures.

An entry with `table` fills the first table below the lines that begin with the texts of `below`,
with a section of `offpath bench show --markdown` or the rows of a text that match a regular
expression.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from offpath.errors import ExpectedError
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run, load_run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments.compare_report import document_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "profiling" / "results"
SOURCES = ROOT / "docs" / "figures.yaml"
FIGURE = r"(\d+(?:,\d{3})*(?:\.\d+)?)"
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
# What is not prose: blocks of code, code within a line, and the targets of links.
CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
UNIT = re.compile(
    r"(?: to \d[\d,.]*)? ?(?:%|x\b|times\b|MB\b|MiB\b|ms\b|s\b|req/s|requests per|images per"
    r"|answers|replies|records|reloads|SIGKILLs|kills)"
)
# Figures of README.md that are no result of ours, or sizes of what was sent.
ALLOWED = frozenset({"1.2 MB"})


class WrongSource(Exception):
    """An entry of figures.yaml that fits no text or names no figure."""


@cache
def load(name: str) -> Run:
    try:
        return load_run(RESULTS / f"{name}.json")
    except ExpectedError as error:
        raise WrongSource(f"no result {name!r}: {error}") from error


@cache
def summarise(name: str) -> Summary:
    return Summary(load(name))


def find_baseline(run: Run) -> str | None:
    """Returns the baseline that the run's command asked for last."""
    return ([None] + re.findall(r"--baseline[ =](\S+)", run.command))[-1]


def find_figures(source: str) -> list[str]:
    """Returns the figures that a source names, formatted."""
    name, _, rest = source.partition(" ")
    if rest.startswith("/"):
        return find_in_text(name, rest.strip("/"))
    summary, (server, *keys) = summarise(name), shlex.split(rest)
    cells = [cell for cell in summary.cells() if summary.metrics(server, cell)]
    for selected in [key for key in keys if key.startswith(("@", "photos-"))]:
        keys.remove(selected)
        cells = [c for c in cells if selected in (c.workload, f"@{c.clients}")]
    if len(cells) != 1:
        raise WrongSource(f"{source}: expected a server and one cell of {summary.cells()}")
    return [find_figure(summary, server, cells[0], key) for key in keys]


def find_figure(summary: Summary, server: str, cell: Cell, key: str) -> str:
    metric, _, end = key.partition(".")
    value: float | None
    if metric.startswith("x/"):
        value = summary.ratio(server, key[2:], cell)
    elif re.fullmatch(r"p\d+", key):
        value = summary.value(server, cell, f"{LATENCY}.{key}")
    else:
        found = summary.spread(server, cell, metric) or summary.spread(server, Cell(), metric)
        value = found and getattr(found, end or "median")
    if value is None:
        raise WrongSource(f"{server}: no figure {key!r}")
    return format_figure(value)


@cache
def read_text(name: str) -> str:
    try:
        return (RESULTS / f"{name}.txt").read_text("utf-8")
    except OSError as error:
        raise WrongSource(f"no result {name!r}: {error}") from error


def find_in_text(name: str, pattern: str) -> list[str]:
    found = list(re.finditer(pattern, read_text(name)))
    if len(found) != 1:
        raise WrongSource(f"{name}: {len(found)} places match {pattern!r}, expected one")
    return [f"{int(n):,}" if n.isdigit() else n for n in found[0].groups()]


def render_table(source: str) -> str:
    """Returns a table's rows as they were printed; of equal rows the first."""
    name, _, what = source.partition(" ")
    lines = list_rows(name, what) if what.startswith("/") else list_shown(name, what)
    if not lines:
        raise WrongSource(f"{name} has no rows of {what!r}")
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def list_rows(name: str, pattern: str) -> list[str]:
    return [row for row in read_text(name).splitlines() if re.search(pattern.strip("/"), row)]


def list_shown(name: str, heading: str) -> list[str]:
    run = load(name)
    sections = document_of(run, find_baseline(run)).sections
    tables = [section.tables for section in sections if section.heading == heading]
    return [row for table in tables for row in table.splitlines() if row.startswith("|")]


def find_once(pattern: str, text: str, quoted: str) -> re.Match[str]:
    """Returns the only match, or raises WrongSource."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise WrongSource(f"{len(found)} places have {quoted!r}, expected one")
    return found[0]


def find_changes(text: str, entry: dict[str, str | list[str]]) -> Iterator[tuple[int, int, str]]:
    """Yields begin, end and right text of each figure, or of the table, of an entry."""
    if table := entry.get("table"):
        begin = 0
        for line in entry["below"]:
            if (begin := f"\n{text}".find(f"\n{line}", begin)) < 0:
                raise WrongSource(f"no line begins with {line!r} below the one before")
        found = re.compile(r"(?:^\|.*\n)+", re.MULTILINE).search(text, begin)
        if not found:
            raise WrongSource(f"no table below {entry['below']!r}")
        yield found.start(), found.end(), render_table(str(table))
        return
    quoted = str(entry["text"])
    # Any white space for a blank, because sentences are wrapped.
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in quoted.split("{}")]
    match = find_once(FIGURE.join(parts), text, quoted)
    figures = [figure for source in entry["from"] for figure in find_figures(source)]
    if len(figures) != match.re.groups:
        raise WrongSource(f"{quoted!r}: {len(figures)} figures of the results")
    yield from ((*match.span(n), figure) for n, figure in enumerate(figures, 1))


def count_lines(text: str, end: int) -> int:
    """Returns the number of the line of a place."""
    return text.count("\n", 0, end) + 1


def list_unmarked(text: str, sourced: set[int]) -> Iterator[str]:
    """Yields each figure of speed, memory or loss that begins at no place of `sourced`."""
    hidden = [match.span() for match in CODE.finditer(text)]
    for number in NUMBER.finditer(text):
        unit = UNIT.match(text, number.end())
        is_hidden = any(begin <= number.start() < end for begin, end in hidden)
        if unit and number.start() not in sourced and not is_hidden:
            if (figure := text[number.start() : unit.end()]) not in ALLOWED:
                yield f"{count_lines(text, number.start())}: {figure!r} has no source"


def check_page(name: str, entries: list[dict[str, str | list[str]]], is_written: bool) -> list[str]:
    """Returns what is wrong in a page; with `is_written` its figures are mended first."""
    page = ROOT / name
    text = page.read_text("utf-8")
    problems, changes = [], []
    for entry in entries:
        try:
            changes += find_changes(text, entry)
        except WrongSource as error:
            problems.append(f"{name}: {error}")
    right = text
    for begin, end, figure in sorted(changes, reverse=True):
        right = right[:begin] + figure + right[end:]
    if name == "README.md":
        unmarked = list_unmarked(text, {begin for begin, _, _ in changes})
        problems += [f"{name}:{one}" for one in unmarked]
    if is_written:
        page.write_text(right, "utf-8")
        return problems
    return problems + [
        f"{name}:{count_lines(text, begin)}: {text[begin:end]!r}, expected {figure!r}"
        for begin, end, figure in changes
        if text[begin:end] != figure
    ]


def main() -> int:
    """Checks or mends the pages; returns the exit code."""
    pages = yaml.safe_load(SOURCES.read_text("utf-8"))
    is_written = "--write" in sys.argv[1:]
    problems = [one for page in pages.items() for one in check_page(*page, is_written)]
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
