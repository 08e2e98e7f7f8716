"""Axes of the charts: names of bars, ticks, legends, labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from offpath.profiling.report.style import LIMIT, PALETTE

# With 4.4 inches, letters stay readable on a phone and grow with the chart on a desktop.
WIDTH_IN = 4.4
LABEL_LENGTH = 32
# Estimated widths in points: of a letter of a tick label, of a letter in a legend, and of what a
# legend needs beside each name. A number on an axis takes NUMBERS_PT with its label.
TICK_LETTER_PT, LEGEND_LETTER_PT, LEGEND_KEY_PT, NUMBERS_PT = 5.1, 4.4, 26.0, 40.0
LEGEND_ROW_PT = 12.0
MOST_COLUMNS = 4
# Up to FEW x values become the ticks, if each is at least APART times the one before.
FEW, APART = 16, 1.4


def style_panel(panel: Any) -> None:
    """Removes the frame and the marks of the ticks."""
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def name_bars(panel: Any, labels: Sequence[str], texts: Sequence[str], top: float) -> None:
    """Writes the names at the left, and the figures in a column right of bars and lines."""
    panel.set_yticks(range(len(labels)), [shorten(label) for label in labels])
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.set_xlim(0, 1.02 * top)
    panel.locator_params(axis="x", nbins=5)
    panel.set_xticks([tick for tick in panel.get_xticks() if 0 <= tick <= top])
    panel.grid(axis="x")
    for index, text in enumerate(texts):
        panel.text(1.05 * top, index, shorten(text), va="center")


def shorten(label: str) -> str:
    """Shortens a name in its middle so that its bar has room; the tables show it whole."""
    if len(label) <= LABEL_LENGTH:
        return label
    end = LABEL_LENGTH // 3
    return f"{label[: LABEL_LENGTH - end - 1]}…{label[-end:]}"


def count_legend_columns(names: Sequence[str]) -> int:
    """Returns the largest number of columns with which a legend fits the width."""
    for columns in range(min(MOST_COLUMNS, len(names)), 1, -1):
        # Matplotlib fills column by column, and the first ones take what is left over.
        rows, longer = divmod(len(names), columns)
        ends = [rows * (1 + index) + min(longer, 1 + index) for index in range(columns)]
        letters = sum(
            max(len(shorten(name)) for name in names[start:end])
            for start, end in zip([0, *ends], ends)
        )
        if LEGEND_KEY_PT * columns + LEGEND_LETTER_PT * letters <= 72 * WIDTH_IN:
            return columns
    return 1


def measure_legend_in(names: Sequence[str]) -> float:
    """Returns the height of a legend in inches."""
    rows = math.ceil(len(names) / count_legend_columns(names))
    return LEGEND_ROW_PT * rows / 72


def measure_labels_pt(labels: Sequence[str]) -> float:
    """Returns the width of the names of bars in points."""
    longest = max((len(shorten(label)) for label in labels), default=0)
    return TICK_LETTER_PT * longest


def place_legend(panel: Any, left_pt: float = NUMBERS_PT) -> None:
    """Writes the legend in rows above the drawing, from the left edge of the figure.

    Args:
        left_pt: width of what is written left of the drawing.
    """
    from matplotlib.transforms import ScaledTranslation

    _, names = panel.get_legend_handles_labels()
    to_edge = ScaledTranslation(-left_pt / 72, 0, panel.figure.dpi_scale_trans)
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        bbox_transform=panel.transAxes + to_edge,
        ncols=count_legend_columns(names),
        borderpad=0.2,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.2,
    )


def scale_axis(panel: Any, axis: str, is_log: bool, values: Sequence[float]) -> None:
    """Sets up an axis with plain numbers; a few values become the ticks of a logarithmic one."""
    if not is_log:
        panel.set(**{f"{axis}lim": (0 if axis == "y" else None, None)})
        return
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set(**{f"{axis}scale": "log"})
    which = getattr(panel, f"{axis}axis")
    ends = panel.get_xlim() if axis == "x" else panel.get_ylim()
    # Within two decades the ticks are 1, 2 and 5 of each, otherwise the powers of ten.
    subs = (1, 2, 5) if ends[1] < 300 * ends[0] else (1,)
    which.set_major_locator(LogLocator(subs=subs))
    which.set_major_formatter(lambda value, _: f"{value:,g}")
    which.set_minor_locator(NullLocator())
    if are_ticks(values):
        panel.set(**{f"{axis}ticks": values})


def are_ticks(values: Sequence[float]) -> bool:
    """Tells whether each value has room for its own text on a logarithmic axis."""
    return 1 < len(values) <= FEW and all(
        below > 0 and above / below >= APART for below, above in zip(values, values[1:])
    )


def finish_plot(panel: Any, x_label: str, y_label: str, bound: tuple[float, str] | None) -> None:
    """Adds labels, a grid and the bound as a dashed horizontal line."""
    panel.set_xlabel(x_label, loc="right")
    panel.set_ylabel(y_label)
    panel.grid()
    if bound:
        place, name = bound
        panel.axhline(place, color=PALETTE[LIMIT], linestyle="--", linewidth=1.1)
        panel.annotate(
            name,
            (0.01, place),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            color=PALETTE[LIMIT],
        )
