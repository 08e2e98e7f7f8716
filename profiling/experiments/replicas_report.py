"""What a run of `replicas` shows: how many there are while the load rises and falls.

Such a run has a row a metric, with a value a sample: seconds (AT), and the metrics of LINES.
"""

from __future__ import annotations

from collections.abc import Sequence

from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.report.declared import list_details, list_facts
from offpath.profiling.report.document import (
    Document,
    LineChart,
    Point,
    Section,
    Series,
    Table,
)

NAME = "replicas"
AT, CLIENTS = "at_s", "clients"
WANTED, RUNNING = "wanted", "running"
ANSWERED, FAILED = "answered", "failed"
# A chart each: its title, and its lines' metrics and names.
LINES = {
    "Replicas": {WANTED: "wanted", RUNNING: "running"},
    "Answers a second": {ANSWERED: "answered 200", FAILED: "not"},
    "Clients": {CLIENTS: "clients"},
}
HEAD = ["seconds", "clients", "answers/s", "wanted", "running", "failed"]


def document_of(run: Run, baseline: str | None) -> Document:
    """The charts over time, and a line wherever something changed."""
    summary = Summary(run)
    (variant,) = run.variants
    (cell,) = summary.cells()

    def read(metric: str) -> list[float]:
        return summary.values(variant, cell, metric)

    charts = [
        LineChart(
            title,
            "seconds",
            "",
            [
                Series(
                    name, step(read(AT), read(metric)), metric in (RUNNING, ANSWERED)
                )
                for metric, name in lines.items()
            ],
        )
        for title, lines in LINES.items()
    ]
    metrics = (AT, CLIENTS, ANSWERED, WANTED, RUNNING, FAILED)
    samples = list(zip(*(read(metric) for metric in metrics)))
    table = Table("answers in the time before", HEAD, list_changes(samples), words=0)
    return Document(
        "Replicas under a load that rises and falls",
        [Section(variant, [*charts, table])],
        run.command,
        list_facts(run),
        list_details(run),
        run.warnings,
        charts,
    )


def step(at_s: Sequence[float], values: Sequence[float]) -> list[Point]:
    """The samples where a line bends: a marker a sample would hide it."""
    points = list(zip(at_s, values))
    return [
        point
        for index, point in enumerate(points)
        if index in (0, len(points) - 1)
        or points[index - 1][1] != point[1]
        or points[index + 1][1] != point[1]
    ]


def list_changes(samples: Sequence[Sequence[float]]) -> list[list[str]]:
    """A row for each time with other clients or replicas: its answers and failures."""
    rows: list[list[str]] = []
    begin = 0
    for index in range(1, len(samples) + 1):
        if index < len(samples) and is_alike(samples[begin], samples[index]):
            continue
        part = samples[begin:index]
        rate = sum(sample[2] for sample in part) / len(part)
        failed = sum(sample[5] for sample in part)
        span = f"{part[0][0]:.0f}-{part[-1][0]:.0f}"
        counts = [f"{part[0][column]:.0f}" for column in (1, 3, 4)]
        rows.append([span, counts[0], f"{rate:.0f}", *counts[1:], f"{failed:.0f}"])
        begin = index
    return rows


def is_alike(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether clients and replicas are the same."""
    return all(first[column] == second[column] for column in (1, 3, 4))
