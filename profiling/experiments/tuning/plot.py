"""Draws a search: throughput against p95, the Pareto front, the bound, the winner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.choice import (
    Verdict,
    rank,
    summarise_finals,
    summarise_trials,
)
from offpath.profiling.experiments.tuning.report import (
    COLUMNS,
    find_warnings,
    format_cells,
    front_candidates,
    list_notes,
    make_dots,
)
from offpath.profiling.experiments.tuning.result import TuneResult
from offpath.profiling.report.charts import Dot
from offpath.profiling.report.line_charts import pareto_front
from offpath.profiling.report.old_page import (
    Section,
    render_page,
    scatter,
    table,
    write_html,
)
from offpath.profiling.report.plot import (
    LIMIT,
    OTHERS,
    OURS,
    SUFFIXES,
    TEXT,
    plotting,
    style_panel,
    write_figure,
)

X_LABEL, Y_LABEL = "requests a second", "p95 latency, ms"


def save_html(
    result: TuneResult, p95_ms: float, verdict: Verdict | None, path: Path
) -> None:
    """Writes a self-contained page."""
    ranked = rank(summarise_trials(result.trials), p95_ms)
    dots = make_dots(ranked, verdict.winner if verdict else None)
    chart = scatter(
        dots,
        X_LABEL,
        Y_LABEL,
        title="candidates",
        front=pareto_front(dots),
        bound=(p95_ms, f"{p95_ms:g} ms"),
        log_y=True,
    )
    front = front_candidates(ranked)
    rows = [
        [
            *format_cells(summary),
            ", ".join(list_notes(summary, result.reference, front, p95_ms)),
        ]
        for summary in ranked
    ]
    finals = [
        [*format_cells(summary), "preset" if candidate == result.reference else ""]
        for candidate, summary in summarise_finals(result.finals).items()
    ]
    sections = [
        Section(
            "Throughput against latency",
            chart,
            "Numbered: the Pareto front, which no candidate beats in both. Diamond: the winner.",
        ),
        Section("Candidates", table([*COLUMNS, ""], rows, left=0), "Best first."),
    ]
    if finals:
        note = verdict.text if verdict else ""
        body = table([*COLUMNS, ""], finals, left=0)
        sections.insert(0, Section("Fresh rounds", body, note))
    write_html(
        render_page(
            "Tuning",
            sections,
            command=result.command,
            facts=list_facts(result),
            warnings=find_warnings(result),
        ),
        path,
    )


def list_facts(result: TuneResult) -> dict[str, str]:
    """What stands under the title."""
    search, host = result.search, result.search["host"]
    return {
        "model": search["model"],
        "workload": search["workload"]["name"],
        "clients": str(search["clients"]),
        "windows": f"{search['repeats']} x {search['seconds']:g} s a candidate",
        "host": f"{host['cores']} x {host['cpu']}",
        "begun": result.started_at,
    }


def save_plot(
    result: TuneResult, p95_ms: float, verdict: Verdict | None, path: Path
) -> None:
    """Writes an SVG or PNG.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    dots = make_dots(
        summarise_trials(result.trials), verdict.winner if verdict else None
    )
    with plotting(path):
        draw(dots, p95_ms, path)


def check_suffix(path: Path) -> None:
    """Raises ExpectedError for a file that matplotlib would not write as we mean it."""
    if path.suffix not in SUFFIXES:
        raise ExpectedError(
            f"plot {str(path)!r}: expected a name ending in .svg or .png"
        )


def draw(dots: Sequence[Dot], p95_ms: float, path: Path) -> None:
    """All candidates in grey, the front joined, the bound dashed, the winner large."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6.4, 4.0))
    panel.scatter([d.x for d in dots], [d.y for d in dots], s=26, color=OTHERS)
    front = pareto_front(dots)
    panel.plot([d.x for d in front], [d.y for d in front], "o-", color=OURS, ms=5)
    strong = [d for d in dots if d.strong]
    panel.scatter(
        [d.x for d in strong], [d.y for d in strong], s=90, marker="D", color=OURS
    )
    panel.axhline(p95_ms, color=LIMIT, linestyle="--", linewidth=1.3)
    panel.text(
        0.01, p95_ms, f"{p95_ms:g} ms", color=LIMIT, va="bottom", transform=edge(panel)
    )
    panel.set_yscale("log")
    panel.set_xlim(left=0)
    panel.set_xlabel(X_LABEL, color=TEXT)
    panel.set_ylabel(Y_LABEL, color=TEXT)
    panel.tick_params(which="minor", colors=TEXT, length=0)
    style_panel(panel, "both")
    write_figure(figure, path)


def edge(panel: Any) -> Any:
    """x as a share of the panel, y as a value."""
    return panel.get_yaxis_transform()
