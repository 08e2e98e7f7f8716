"""Declares what `bench sweep` shows: rate, latency and failures against the number of clients."""

from __future__ import annotations

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY
from offpath.profiling.report.declared import Part, Report
from offpath.profiling.report.document import Document
from offpath.profiling.report.measured import (
    FAILED,
    RATE,
    View,
    figure_column,
    figure_table,
    line_chart,
    make_run_document,
)

P50, P95 = f"{LATENCY}.p50", f"{LATENCY}.p95"
RATES = line_chart("rate", "Requests per second", "good replies per second")
REPORT: Report[View] = Report(
    "Servers against the number of clients",
    (
        Part(
            "against the number of clients",
            (
                RATES,
                line_chart(P50, "Median latency", "ms", log_y=True),
                line_chart(P95, "p95 latency", "ms", log_y=True),
                line_chart("failed", "Failed responses", "not 200"),
                figure_table(
                    "",
                    (
                        RATE,
                        figure_column(P50, "p50 ms"),
                        figure_column(P95, "p95 ms"),
                        FAILED,
                    ),
                ),
            ),
        ),
    ),
    headline=(RATES,),
)


def document_of(run: Run, baseline: str | None) -> Document:
    return make_run_document(run, REPORT, baseline, find_doubts(run))
