"""`profile server` as a document: the account of a client's latency, and what was counted.

The account's lines add up to the client's mean (see `server_account.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import (
    format_bytes,
    format_figure,
    format_ms,
    format_share,
)
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments.server_account import WHERE
from offpath.profiling.profilers.function_sections import make_function_sections
from offpath.profiling.profilers.profile_charts import lay_out, list_bars
from offpath.profiling.profilers.profile_document import make_file_sections
from offpath.profiling.profilers.profile_figures import (
    ACCOUNT,
    find_cell,
    read_parts,
    read_total,
)
from offpath.profiling.report.charts import Histogram, StackedChart, Waterfall
from offpath.profiling.report.document import Document, Section, Table
from offpath.profiling.report.measured import describe_run

TITLE = "Where a client's latency goes, from its socket to the model"
# Metric of the summary -> its name here.
COUNTED = {
    "replies": "replies",
    "failed": "failures",
    "rate": "replies a second",
    f"{LATENCY}.mean": "mean ms",
    **{f"{LATENCY}.p{percent}": f"p{percent} ms" for percent in (50, 95, 99)},
    "mean_batch_size": "mean batch size",
    **{
        f"cpu_ms.{group}": f"CPU ms a request, {who}"
        for group, who in {
            "frontend": "Java",
            "workers": "workers",
            "generator": "load generator",
        }.items()
    },
    "other_cores": "cores busy with something else",
}


def document_of(run: Run, baseline: str | None = None) -> Document:
    """Everything that is shown of a server's profile."""
    summary = Summary(run)
    (name,) = run.variants
    account = read_parts(summary, name, ACCOUNT)
    latencies = summary.values(name, find_cell(summary, name))
    charts = [StackedChart(TITLE, "ms", list_bars(summary, [name], ACCOUNT))]
    sections = [
        Section("A client's mean latency", charts, "From the client's socket inwards."),
        Section(
            "The account",
            [Waterfall(name, "ms", lay_out(account)), make_account(summary, name)],
            "Means in the order of the path; they add up to the client's mean.",
        ),
        Section("How long clients wait", [Histogram(name, "ms a request", latencies)]),
        Section("What was counted", [make_counts(summary, name)]),
        *make_function_sections(summary, [name]),
        *make_file_sections(run, [name]),
    ]
    document = Document(
        title=f"{TITLE}: {name}",
        sections=sections,
        warnings=find_doubts(run),
        headline=charts,
    )
    return describe_run(run, document)


def make_account(summary: Summary, name: str) -> Table:
    """A client's mean latency part by part."""
    whole = read_total(summary, name, ACCOUNT)
    rows = [
        [
            part,
            WHERE.get(part, "handler"),
            format_ms(ms / 1e3),
            format_share(ms / whole if whole else 0.0),
        ]
        for part, ms in read_parts(summary, name, ACCOUNT).items()
    ]
    rows.append(["total", "client", format_ms(whole / 1e3), "100 %"])
    columns = ["part", "where", "ms", "share"]
    return Table(name, columns, rows, words=2, has_total=True)


def make_counts(summary: Summary, name: str) -> Table:
    """What client, server and machine counted; what was not measured is left out."""
    cell, details = find_cell(summary, name), summary.run.details
    figures = {
        title: format_figure(value)
        for metric, title in COUNTED.items()
        if (value := summary.value(name, cell, metric)) is not None
    }
    texts = {
        "clients": str(cell.clients),
        **figures,
        **{f"in force: {key}": str(v) for key, v in details["in_force"].items()},
        **list_gpu_texts(details["gpu"]),
    }
    absent = details["gpu"]["absent"]
    note = f"GPU: {absent}" if absent else ""
    rows = [[key, text] for key, text in texts.items()]
    return Table(name, ["", "value"], rows, note=note)


def list_gpu_texts(gpu: Mapping[str, Any]) -> dict[str, str]:
    """Mean utilisation and largest memory of each device, see `load.gpu.GpuSamples`."""
    texts = {}
    for device in gpu["devices"]:
        readings = [r for r in gpu["readings"] if r["device"] == device["index"]]
        busy = [r["utilisation"] for r in readings if r["utilisation"] is not None]
        name = f"GPU {device['index']}, {device['name']}"
        if busy:
            texts[f"{name}: utilisation"] = format_share(fmean(busy))
        if readings:
            used = max(r["memory_used_bytes"] for r in readings)
            texts[f"{name}: memory"] = format_bytes(used)
    return texts
