"""Declares what `bench sweep` shows: rate, latency and failures against the number of clients."""

from __future__ import annotations

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY
from offpath.profiling.report.columns import FAILED, RATE, Column, TableSpec
from offpath.profiling.report.declared import Part, Report, make_document
from offpath.profiling.report.document import Document
from offpath.profiling.report.specs import LineSpec

P50, P95 = f"{LATENCY}.p50", f"{LATENCY}.p95"
X = "clients"
RATES = LineSpec("rate", X, "Requests a second", "good replies a second", X)
REPORT = Report(
    "Servers against the number of clients",
    (
        Part(
            "{workload}: against the number of clients",
            (
                RATES,
                LineSpec(P50, X, "Median latency", "ms", X, log_y=True),
                LineSpec(P95, X, "p95 latency", "ms", X, log_y=True),
                LineSpec("failed", X, "Failed responses", "not 200", X),
            ),
            (
                TableSpec(
                    "",
                    (RATE, Column(P50, "p50 ms"), Column(P95, "p95 ms"), FAILED),
                    (X,),
                ),
            ),
        ),
    ),
    (RATES,),
)


def document_of(run: Run, baseline: str | None) -> Document:
    """Returns all tables and charts of a run."""
    return make_document(run, REPORT, baseline, find_doubts(run))
