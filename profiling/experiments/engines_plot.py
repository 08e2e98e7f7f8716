"""Draws the engines' benchmark: each variant's rate over the baseline's, a panel per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offpath.profiling.core.figures import format_figure
from offpath.profiling.experiments.engines_report import describe_team, select_rows
from offpath.profiling.experiments.engines_result import BASELINE, EnginesResult
from offpath.profiling.experiments.engines_summary import (
    EngineRow,
    find_best,
    summarise_engines,
)
from offpath.profiling.report.bars import Bar
from offpath.profiling.report.plot import (
    INCHES_PER_BAR,
    TEXT,
    draw_bars,
    plotting,
    write_figure,
)


def save_engines_plot(result: EnginesResult, path: Path) -> None:
    """Writes an SVG or PNG.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    with plotting(path):
        from matplotlib import pyplot

        rows = summarise_engines(result)
        models = list(dict.fromkeys(row.model for row in rows))
        bars = {model: make_bars(result, select_rows(rows, model)) for model in models}
        most = max((len(part) for part in bars.values()), default=1)
        figure, panels = pyplot.subplots(
            1,
            max(1, len(models)),
            figsize=(6.2 * max(1, len(models)), 1.5 + INCHES_PER_BAR * most),
            squeeze=False,
        )
        for panel, model in zip(panels[0], models):
            panel.set_title(model, color=TEXT, fontsize=11, loc="left")
            draw_bars(panel, bars[model])
            label = f"x {BASELINE}: {describe_team(result)}"
            if any(bar.label.endswith("*") for bar in bars[model]):
                label += "\n* answers differ: the parity gate refuses it"
            panel.set_xlabel(label, color=TEXT, fontsize=9)
        write_figure(figure, path)


def make_bars(result: EnginesResult, rows: Sequence[EngineRow]) -> list[Bar]:
    """Ratios at the largest batch size with their rates; the best within the bound is strong."""
    best = find_best(rows, result.parity_bound)
    bars = []
    for row in rows:
        if not row.ratios:
            continue
        ratio, rate = row.ratios[row.largest_batch], row.rates[row.largest_batch]
        text = f"{ratio.median:.2f} x  ({format_figure(rate.median)}/s)"
        label = row.variant if row.holds(result.parity_bound) else f"{row.variant} *"
        bars.append(Bar(label, ratio.median, text, row is best, ratio.low, ratio.high))
    return bars
