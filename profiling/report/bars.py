"""Bars of the pages: plain, stacked, and one after the other as a waterfall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from offpath.profiling.report.charts import COLOURS
from offpath.profiling.report.markup import render

# The same work has the same colour in every chart, whether a stage or a bucket names it.
COLOUR_OF = {
    "inference": "s0",
    "forward": "s0",
    "read": "s1",
    "config": "s1",
    "file I/O": "s1",
    "transform": "s2",
    "resize": "s2",
    "preprocess": "s2",
    "S3": "s3",
    "s3": "s3",
    "decode": "s4",
    "postprocess": "s5",
    "serialise": "s5",
    "transfer": "s6",
    "tensor": "s6",
    "log": "s7",
    "logging": "s7",
    "other": "grey",
    # Of the account of a server.
    "client, socket and front end": "s1",
    "queue": "s3",
    "worker protocol": "s6",
    "worker and handler": "s0",
    "handler": "s0",
    "handler, other": "grey",
    "not accounted for": "grey",
}


@dataclass(frozen=True)
class Bar:
    """One bar of a bar chart; `low` and `high` are its spread, `text` its figure in words."""

    label: str
    value: float
    text: str
    strong: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class StackedBar:
    """One bar of named parts, in their order; `text` stands for its sum."""

    label: str
    parts: Sequence[tuple[str, float]]
    text: str


@dataclass(frozen=True)
class Segment:
    """One part of a stacked bar as it is drawn; `share` is of its bar, `width` of the page's."""

    part: str
    share: float
    width: float


@dataclass(frozen=True)
class Span:
    """One row of a waterfall: where it starts and how long it is, in one unit; `colour` a class."""

    label: str
    start: float
    length: float
    text: str
    colour: str


def assign_colours(parts: Iterable[str]) -> dict[str, str]:
    """CSS classes per part: the known ones keep their colour, the others take what is left.

    Where the colours do not suffice, a part shares its colour with an earlier one and is striped.
    """
    names = list(dict.fromkeys(parts))
    colours: dict[str, str] = {}
    for name in names:
        wanted = COLOUR_OF.get(name)
        if wanted and wanted not in colours.values():
            colours[name] = wanted
    free = [f"s{n}" for n in range(COLOURS) if f"s{n}" not in colours.values()]
    for name in names:
        if name not in colours and free and COLOUR_OF.get(name) != "grey":
            colours[name] = free.pop(0)
        elif name not in colours:
            colours[name] = f"{COLOUR_OF.get(name, 'grey')} striped"
    return {name: colours[name] for name in names}


def bar_chart(
    bars: Sequence[Bar], *, label: str, limit: tuple[float, str] | None = None
) -> Markup:
    """Horizontal bars with their figures beside them.

    Args:
        label: says in words what is shown, for readers who do not see it.
        limit: value and name of a dashed line through all bars.
    """
    tops = [bar.value if bar.high is None else bar.high for bar in bars]
    top = max([*tops, limit[0] if limit else 0.0], default=0.0) or 1.0
    return render("bars.html", bars=bars, top=top, label=label, limit=limit)


def stacked_bars(
    bars: Sequence[StackedBar],
    colours: Mapping[str, str],
    *,
    label: str,
    shares: bool = False,
) -> Markup:
    """Bars of coloured parts on one scale, or each filling the width when `shares`.

    Args:
        colours: part -> CSS class, from `assign_colours`.
    """
    rows = list(zip(bars, list_segments(bars, shares)))
    return render("stacked.html", rows=rows, colours=colours, label=label)


def list_segments(bars: Sequence[StackedBar], shares: bool) -> list[list[Segment]]:
    """Each bar's segments; parts below 0 have no width."""
    sums = [sum(max(value, 0.0) for _, value in bar.parts) or 1.0 for bar in bars]
    top = max(sums, default=1.0)
    return [
        [
            Segment(
                part,
                max(value, 0.0) / whole,
                max(value, 0.0) / (whole if shares else top),
            )
            for part, value in bar.parts
        ]
        for bar, whole in zip(bars, sums)
    ]


def legend(colours: Mapping[str, str]) -> Markup:
    """Names beside their colours."""
    return render("legend.html", colours=colours)


def waterfall(spans: Sequence[Span], *, caption: str) -> Markup:
    """Rows of bars that begin where the work began, under a caption."""
    whole = max((span.start + span.length for span in spans), default=0.0) or 1.0
    return render("waterfall.html", spans=spans, whole=whole, caption=caption)
