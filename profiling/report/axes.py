"""What the charts' axes share: names, ticks, legends, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offpath.profiling.report.style import LIMIT, PALETTE

LABEL_LENGTH = 32


LEGEND_COLUMNS = 3


# So many x values, so far apart, are ticks of their own.
FEW, APART = 16, 1.4


def style_panel(panel: Any) -> None:
    """No frame and no ticks' marks."""
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def name_bars(
    panel: Any, labels: Sequence[str], texts: Sequence[str], top: float
) -> None:
    """Names at the left; figures in a column of their own, where neither bar nor line crosses."""
    panel.set_yticks(range(len(labels)), [shorten(label) for label in labels])
    panel.set_ylim(len(labels) - 0.4, -0.6)
    longest = max((len(shorten(text)) for text in texts), default=0)
    panel.set_xlim(0, top * (1.05 + 0.024 * longest))
    panel.set_xticks([tick for tick in panel.get_xticks() if 0 <= tick <= top])
    panel.grid(axis="x")
    for index, text in enumerate(texts):
        panel.text(1.04 * top, index, shorten(text), va="center")


def shorten(label: str) -> str:
    """A name that leaves room for its bar; the tables beside have it whole."""
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 1]}…"


def place_legend(panel: Any) -> None:
    """Names in rows above the drawing, where nothing is drawn."""
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=LEGEND_COLUMNS,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.2,
    )


def scale_axis(panel: Any, axis: str, is_log: bool, values: Sequence[float]) -> None:
    """Plain numbers on both kinds of axis; few values of a logarithmic one are its ticks."""
    if not is_log:
        panel.set(**{f"{axis}lim": (0 if axis == "y" else None, None)})
        return
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set(**{f"{axis}scale": "log"})
    which = getattr(panel, f"{axis}axis")
    ends = panel.get_xlim() if axis == "x" else panel.get_ylim()
    # Within a decade or two, 1, 2 and 5 of each; then the powers alone.
    subs = (1, 2, 5) if ends[1] < 300 * ends[0] else (1,)
    which.set_major_locator(LogLocator(subs=subs))
    which.set_major_formatter(lambda value, _: f"{value:,g}")
    which.set_minor_locator(NullLocator())
    if are_ticks(values):
        panel.set(**{f"{axis}ticks": values})


def are_ticks(values: Sequence[float]) -> bool:
    """Whether each value has room for a text of its own on a logarithmic axis."""
    return 1 < len(values) <= FEW and all(
        below > 0 and above / below >= APART for below, above in zip(values, values[1:])
    )


def finish_plot(
    panel: Any, x_label: str, y_label: str, bound: tuple[float, str] | None
) -> None:
    """Labels, grid and a dashed horizontal line."""
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
