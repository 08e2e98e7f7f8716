"""Two saved profiles side by side, part by part; unlike ones are refused.

Both become one run, whose variants are called `A offpath` and `B offpath`: it is saved, shown and
drawn as any other. Figures are an image's, so that batches of different sizes compare; the account
of a server is a request's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from offpath.handler.errors import WrongOption
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.facts import (
    describe_host,
    describe_workload,
    format_time,
)
from offpath.profiling.core.figures import format_ms, format_ratio
from offpath.profiling.core.run import Run, find_differences
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.profile_charts import list_bars
from offpath.profiling.profilers.profile_figures import (
    ACCOUNT,
    BUCKET,
    OTHER,
    STAGE,
    TOTAL,
    read_parts,
    read_total,
)
from offpath.profiling.report.document import Document, Section, StackedChart, Table

EXPERIMENT = "profile-compare"
# What must be alike. Versions may differ: comparing before and after an upgrade is what people do.
HOST_KEYS = ("cpu", "cores", "memory_gib", "gpu")
SETTING_KEYS = ("model", "batch_size", "clients", "threads", "device", "s3_latency_ms")
SHOWN_DIFFERENCES = 6
WHAT = {
    ACCOUNT: "a client's mean latency, ms",
    STAGE: "stages, ms an image",
    BUCKET: "own time by kind of work, ms an image",
}

Pair = tuple[str, str]


def join_profiles(first: Run, second: Run, command: str, force: bool = False) -> Run:
    """The figures of both as one run, with `details["pairs"]` of variants to compare.

    Raises:
        WrongOption: they are not comparable and `force` is not set, or no handlers pair.
    """
    pairs = pair_handlers(list(first.variants), list(second.variants))
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    unlike = list_differences(
        list_essentials(first, ours), list_essentials(second, theirs)
    )
    if unlike and not force:
        raise WrongOption(
            f"these profiles are not comparable: {'; '.join(unlike[:SHOWN_DIFFERENCES])};"
            " --force compares them all the same"
        )
    # What may differ, and may explain the figures.
    notes = list_differences(list_header(first), list_header(second))
    sides = rename(first, "A", ours), rename(second, "B", theirs)
    return replace(
        first,
        experiment=EXPERIMENT,
        command=command,
        variants={name: facts for one in sides for name, facts in one.variants.items()},
        workloads={**second.workloads, **first.workloads},
        warnings=[f"also differs: {note}" for note in dict.fromkeys([*unlike, *notes])],
        details={
            "pairs": [(f"A {a}", f"B {b}") for a, b in pairs],
            "runs": {
                letter: describe(run) for letter, run in zip("AB", (first, second))
            },
        },
        rows=[row for one in sides for row in one.rows],
        failures=[],
    )


def rename(run: Run, letter: str, names: Sequence[str]) -> Run:
    """The named variants alone, with a letter before their names."""
    return replace(
        run,
        variants={f"{letter} {name}": run.variants[name] for name in names},
        rows=[
            replace(row, variant=f"{letter} {row.variant}")
            for row in run.rows
            if row.variant in names
        ],
    )


def describe(run: Run) -> dict[str, str]:
    """What stands above a comparison of each side."""
    return {
        "command": run.command,
        "taken": format_time(run.started_at),
        "host": describe_host(run.host),
        **{f"images {n}": describe_workload(it) for n, it in run.workloads.items()},
    }


def pair_handlers(first: Sequence[str], second: Sequence[str]) -> list[Pair]:
    """Handlers of the same name; where each run has one only, those two."""
    pairs = [(name, name) for name in first if name in second]
    if not pairs and len(first) == len(second) == 1:
        pairs = [(first[0], second[0])]
    if not pairs:
        names = [", ".join(side) or "none" for side in (first, second)]
        raise WrongOption(
            f"no handlers to compare: the first result has {names[0]}, the second {names[1]};"
            " expected a name that is in both, or one handler each"
        )
    return pairs


def list_essentials(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """What must be alike, by the names that a message has for it."""
    return {
        "experiment": run.experiment,
        "images": [workload.get("identity") for workload in run.workloads.values()],
        "host": {key: run.host.get(key) for key in HOST_KEYS},
        "settings": {key: run.settings.get(key) for key in SETTING_KEYS},
        "batch size": [run.variants[name].get("batch_size") for name in names],
    }


def list_header(run: Run) -> dict[str, Any]:
    """What else may explain a difference of the figures."""
    return {"host": run.host, "settings": run.settings}


def list_differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Every differing leaf, as "host.cpu: one, other"."""
    return [text.removeprefix(".") for text in find_differences(first, second, "")]


def document_of(run: Run, baseline: str | None = None) -> Document:
    """Each pair of a joined run, with the ratio of the second to the first."""
    summary = Summary(run)
    sections = [
        section
        for a, b in run.details["pairs"]
        for kind in WHAT
        if (section := make_section(summary, (a, b), kind))
    ]
    return Document(
        title="Two profiles side by side",
        sections=sections,
        command=run.command,
        facts={
            f"{letter}: {what}": text
            for letter, facts in run.details["runs"].items()
            for what, text in facts.items()
            if text
        },
        warnings=find_doubts(run),
        headline=[c for s in sections for c in s.parts if isinstance(c, StackedChart)],
    )


def make_section(summary: Summary, pair: Pair, kind: str) -> Section | None:
    """Both bars on one scale, then the figures; None where one side has none of the kind."""
    bars = list_bars(summary, pair, kind)
    if len(bars) < 2:
        return None
    rows = [
        [name, *map(show_ms, (one, other)), show_ratio(one, other)]
        for name, one, other in compare_parts(summary, pair, kind)
    ]
    columns = ["", *pair, "B / A"]
    heading = f"{' and '.join(pair)}: {WHAT[kind]}"
    chart = StackedChart(heading, "ms", bars)
    return Section(heading, [chart, Table("", columns, rows, has_total=True)])


def compare_parts(
    summary: Summary, pair: Pair, kind: str
) -> list[tuple[str, float | None, float | None]]:
    """Milliseconds of both by part, None where one lacks it: in the first's order, then the rest.

    What is left over and the total stand last.
    """
    sides = [
        {**read_parts(summary, name, kind), TOTAL: read_total(summary, name, kind)}
        for name in pair
    ]
    last = (OTHER, TOTAL)
    names = [name for name in {**sides[0], **sides[1]} if name not in last]
    names += [name for name in last if any(name in side for side in sides)]
    return [(name, sides[0].get(name), sides[1].get(name)) for name in names]


def show_ms(value: float | None) -> str:
    """Empty where one side lacks the part."""
    return "" if value is None else format_ms(value / 1e3)


def show_ratio(one: float | None, other: float | None) -> str:
    """The second over the first; empty where there is none."""
    if one is None or other is None or one <= 0:
        return ""
    return format_ratio(other / one)
