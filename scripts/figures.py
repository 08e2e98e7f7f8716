r"""Keeps the measured figures in documents (PAGES) equal to the results that they quote.

usage: python scripts/figures.py [--write]

Without --write it exits with 1 and names each line that differs from its result, and each figure of
speed, memory or loss in README.md that names no result. With --write it mends the figures.

Behind figures, a comment names their result in profiling/results, for the last numbers before it:

    145 (140 to 148)<!--= direct-1200k offpath-granian-direct rate rate.low rate.high-->
    1,795 answered<!--= kills-granian /: (\d+) answered/-->

A JSON result is followed by a server (in quotes if it has spaces), by a workload or `@CLIENTS`
where there are several, and by keys: `x/SERVER` (the median of the rounds' ratios of rates), `p99`
and other percentiles, or a metric of `offpath bench show`, also with `.low` or `.high`. A text
is followed by a regular expression, whose groups are the numbers.

Above a table, a comment names a result and a section of `offpath bench show --markdown`, or the
rows of a text that match a regular expression:

    <!--table direct-1200k photos-1200k: latency-->
    <!--table faults-granian /^\| (?!clock)/-->
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from offpath.errors import ExpectedError
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run, load_run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments.compare_report import document_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "profiling" / "results"
PAGES = [ROOT / name for name in ("README.md", "docs/results.md", "docs/after-torchserve.md")]
MARK = re.compile(r"<!--= (?P<file>\S+) (?P<rest>.+?)-->")
TABLE = re.compile(r"(<!--table (\S+) (.+?)-->\n\n)(?:\|.*\n)*\n?")
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
COMMENT = re.compile(r"<!--.*?-->")
# What is not prose: blocks of code, code within a line, and the targets of links.
CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
UNIT = re.compile(
    r"(?: to \d[\d,.]*)? ?(?:%|x\b|times\b|MB\b|MiB\b|ms\b|s\b|req/s|requests per|images per"
    r"|answers|replies|records|reloads|SIGKILLs|kills)"
)


class WrongMark(Exception):
    """A comment that names no figure."""


@cache
def load(name: str) -> Run:
    try:
        return load_run(RESULTS / f"{name}.json")
    except ExpectedError as error:
        raise WrongMark(f"no result {name!r}: {error}") from error


@cache
def summarise(name: str) -> Summary:
    return Summary(load(name))


def find_baseline(run: Run) -> str | None:
    """Returns the baseline that the run's command asked for last."""
    return ([None] + re.findall(r"--baseline[ =](\S+)", run.command))[-1]


def find_figures(name: str, rest: str) -> list[str]:
    """Returns the figures that a mark names, formatted."""
    if rest.startswith("/"):
        return find_in_text(name, rest.strip("/"))
    summary, (server, *keys) = summarise(name), shlex.split(rest)
    cells = [cell for cell in summary.cells() if summary.metrics(server, cell)]
    for selected in [key for key in keys if key.startswith(("@", "photos-"))]:
        keys.remove(selected)
        cells = [c for c in cells if selected in (c.workload, f"@{c.clients}")]
    if len(cells) != 1:
        raise WrongMark(f"{name} {rest}: expected a server and one cell of {summary.cells()}")
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
        raise WrongMark(f"{server}: no figure {key!r}")
    return format_figure(value)


@cache
def read_text(name: str) -> str:
    try:
        return (RESULTS / f"{name}.txt").read_text("utf-8")
    except OSError as error:
        raise WrongMark(f"no result {name!r}: {error}") from error


def find_in_text(name: str, pattern: str) -> list[str]:
    found = list(re.finditer(pattern, read_text(name)))
    if len(found) != 1:
        raise WrongMark(f"{name}: {len(found)} places match {pattern!r}, expected one")
    return [f"{int(n):,}" if n.isdigit() else n for n in found[0].groups()]


def render_table(match: re.Match[str]) -> str:
    """Returns a table's comment and its rows as they were printed; of equal rows the first."""
    head, name, what = match.groups()
    lines = list_rows(name, what) if what.startswith("/") else list_shown(name, what)
    if not lines:
        raise WrongMark(f"{name} has no rows of {what!r}")
    return head + "".join(f"{line}\n" for line in dict.fromkeys(lines)) + "\n"


def list_rows(name: str, pattern: str) -> list[str]:
    return [row for row in read_text(name).splitlines() if re.search(pattern.strip("/"), row)]


def list_shown(name: str, heading: str) -> list[str]:
    run = load(name)
    sections = document_of(run, find_baseline(run)).sections
    tables = [section.tables for section in sections if section.heading == heading]
    return [row for table in tables for row in table.splitlines() if row.startswith("|")]


def list_marked(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yields each number that has a mark, with what its result says."""
    for mark in MARK.finditer(text):
        if not text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()].strip():
            raise WrongMark(f"{mark[0]}: a comment that begins a line ends the paragraph")
        figures = find_figures(mark["file"], mark["rest"])
        begin = max(text.rfind("\n\n", 0, mark.start()), text.rfind("-->", 0, mark.start()), 0)
        numbers = list(NUMBER.finditer(text, begin, mark.start()))[-len(figures) :]
        if len(numbers) < len(figures):
            raise WrongMark(f"{mark[0]}: {len(figures)} figures, and fewer numbers before it")
        yield from zip(numbers, figures)


def rewrite(text: str) -> str:
    """Returns a page with the figures of its results; raises WrongMark."""
    text = TABLE.sub(render_table, text)
    for number, figure in reversed(list(list_marked(text))):
        text = text[: number.start()] + figure + text[number.end() :]
    return text


def list_unmarked(text: str, allowed: frozenset[str]) -> Iterator[str]:
    """Yields each figure of speed, memory or loss without a mark that is not `allowed`."""
    marked = {number.start() for number, _ in list_marked(text)}
    hidden = [m.span() for pattern in (CODE, COMMENT) for m in pattern.finditer(text)]
    for number in NUMBER.finditer(text):
        unit = UNIT.match(text, number.end())
        is_hidden = any(begin <= number.start() < end for begin, end in hidden)
        if unit and number.start() not in marked and not is_hidden:
            if (figure := text[number.start() : unit.end()]) not in allowed:
                yield f"line {text.count(chr(10), 0, number.start()) + 1}: {figure!r} has no mark"


# Figures of README.md that are no result of ours, or sizes of what was sent.
ALLOWED = frozenset({"1.2 MB"})


def main() -> int:
    """Checks or mends the pages; returns the exit code."""
    problems = []
    for page in PAGES:
        text = page.read_text("utf-8")
        try:
            right = rewrite(text)
            if "--write" in sys.argv[1:]:
                page.write_text(right, "utf-8")
                text = right
            lines = zip(text.splitlines(), right.splitlines())
            problems += [f"{page.name}: {a!r}, expected {b!r}" for a, b in lines if a != b]
            if page.name == "README.md":
                problems += [f"{page.name}: {one}" for one in list_unmarked(text, ALLOWED)]
        except WrongMark as error:
            problems.append(f"{page.name}: {error}")
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
