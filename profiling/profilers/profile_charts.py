"""The parts of a handler's or a server's time as charts: beside one another, and end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offpath.profiling.core.figures import format_ms
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.profile_figures import read_parts, read_total
from offpath.profiling.report.charts import Chart, Span, StackedBar, StackedChart


def list_bars(summary: Summary, names: Sequence[str], kind: str) -> list[StackedBar]:
    """The parts of each variant that has them."""
    bars = []
    for name in names:
        whole = f"{format_ms(read_total(summary, name, kind) / 1e3)} ms"
        if parts := read_parts(summary, name, kind):
            bars.append(StackedBar(name, list(parts.items()), whole))
    return bars


def stack(title: str, unit: str, bars: Sequence[StackedBar]) -> list[Chart]:
    """The bars on one scale, and where there are several also as shares."""
    charts: list[Chart] = [StackedChart(title, unit, bars)] if bars else []
    if len(bars) > 1:
        shares = [StackedBar(bar.label, bar.parts, "") for bar in bars]
        charts.append(StackedChart("Shares of each", "", shares, is_share=True))
    return charts


def lay_out(parts_ms: Mapping[str, float]) -> list[Span]:
    """Parts end to end; one below zero has no length."""
    spans, start = [], 0.0
    for part, ms in parts_ms.items():
        length = max(0.0, ms)
        spans.append(Span(part, start, length, f"{format_ms(ms / 1e3)} ms", part))
        start += length
    return spans
