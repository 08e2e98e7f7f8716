"""Draws the stages of a profile as one SVG for a README: bars on one scale, then as shares.

It brings its own background and follows the reader's light or dark mode; GitHub may show it on
either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.in_process.profile_result import ProfileResult
from offpath.profiling.in_process.profile_sections import list_stage_bars
from offpath.profiling.in_process.profile_summary import summarise_stages
from offpath.profiling.report.bars import (
    Segment,
    StackedBar,
    assign_colours,
    list_segments,
)
from offpath.profiling.report.markup import render

WIDTH, MARGIN = 760, 20
BAR_HEIGHT, BAR_STEP = 28, 58
LEGEND_STEP = 22
# Of the letters, so that labels never overlap; on the generous side.
LETTER_WIDTH = 6.8


@dataclass(frozen=True)
class DrawnBar:
    """A bar at its place; segments are (x, length, css class, what it is, label or "")."""

    y: float
    name: str
    text: str
    segments: Sequence[tuple[float, float, str, str, str]]


def save_svg(result: ProfileResult, path: Path) -> None:
    """Writes the SVG.

    Raises:
        ExpectedError: another suffix, or no handler has stages.
    """
    if path.suffix != ".svg":
        raise ExpectedError(f"picture {str(path)!r}: expected a name ending in .svg")
    rows = {p.name: summarise_stages(p.batches) for p in result.handlers if p.batches}
    if not rows:
        raise ExpectedError(
            "this result has no stages to draw; `offpath profile stages` makes them"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(list_stage_bars(rows)), encoding="utf-8")


def draw(bars: Sequence[StackedBar]) -> str:
    """The SVG's text."""
    colours = assign_colours(part for bar in bars for part, _ in bar.parts)
    legend, below = place_legend(colours)
    passes = [("milliseconds an image, one scale", False)]
    passes += [("shares of each", True)] if len(bars) > 1 else []
    headings, drawn, y = [], [], below
    for heading, shares in passes:
        headings.append((heading, y))
        for bar, segments in zip(bars, list_segments(bars, shares)):
            text = bar.text if not shares else ""
            drawn.append(
                DrawnBar(y + 32, bar.label, text, place_segments(segments, colours))
            )
            y += BAR_STEP
        y += 24
    return render(
        "stages.svg",
        title="Where the time of an image goes: "
        + ", ".join(bar.label for bar in bars),
        width=WIDTH,
        height=y - 4,
        margin=MARGIN,
        bar_height=BAR_HEIGHT,
        legend=legend,
        headings=headings,
        bars=drawn,
    )


def place_legend(
    colours: dict[str, str],
) -> tuple[list[tuple[float, float, str, str]], float]:
    """(x, y, css class, name) of each entry, wrapped to the width; and where the next text goes."""
    placed, x, y = [], float(MARGIN), 52.0
    for name, colour in colours.items():
        length = 16 + LETTER_WIDTH * len(name) + 14
        if x + length > WIDTH - MARGIN:
            x, y = float(MARGIN), y + LEGEND_STEP
        placed.append((x, y, colour, name))
        x += length
    return placed, y + 32


def place_segments(
    segments: Sequence[Segment], colours: dict[str, str]
) -> list[tuple[float, float, str, str, str]]:
    """Segments from left to right; a label only where it fits."""
    placed, x = [], float(MARGIN)
    for segment in segments:
        length = segment.width * (WIDTH - 2 * MARGIN)
        share = f"{segment.part} {100 * segment.share:.0f} %"
        fitting = [
            label
            for label in (share, segment.part)
            if LETTER_WIDTH * len(label) + 6 <= length
        ]
        if length > 0:
            label = fitting[0] if fitting else ""
            colour = colours[segment.part]
            placed.append((round(x, 2), round(length, 2), colour, share, label))
        x += length
    return placed
