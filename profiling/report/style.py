"""Colours and type of the charts: the light palette, and the colour of each kind of work.

`templates/palette.css` has the same palette, with its dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import Any

# The light palette of templates/palette.css. In an SVG each colour becomes a CSS variable.
PALETTE = {
    **{"s0": "#0072b2", "s1": "#e69f00", "s2": "#009e73", "s3": "#d55e00"},
    **{"s4": "#56b4e9", "s5": "#cc79a7", "s6": "#d9c400", "s7": "#7f5539"},
    **{"s8": "#a58ac9", "s9": "#882255"},
    **{"grey": "#b4bac1", "text": "#1f2328", "soft": "#59636e", "line": "#d1d9e0"},
}

# Letters on a colour: dark, and white on the dark colours.
INK, PALE_INK = "#16191d", "#fffffe"
PALE_ON = (PALETTE["s0"], PALETTE["s7"], PALETTE["s9"])

SERIES = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9")

OURS, OTHERS, LIMIT = "s0", "grey", "s3"

# The same work has the same colour in every chart, under the name of a stage. Two names share one
# only if no page has both.
COLOUR_OF = {
    **dict.fromkeys(("inference", "workers", "worker and handler"), "s0"),
    **dict.fromkeys(("read", "front end"), "s1"),
    **dict.fromkeys(("transform",), "s2"),
    **dict.fromkeys(("s3", "queue"), "s3"),
    **dict.fromkeys(("decode",), "s4"),
    **dict.fromkeys(("postprocess",), "s5"),
    **dict.fromkeys(("transfer",), "s6"),
    **dict.fromkeys(("log",), "s7"),
    **dict.fromkeys(("preprocess", "worker protocol"), "s8"),
    **dict.fromkeys(("config", "client, socket and front end"), "s9"),
    **dict.fromkeys(("other", "load", "handler, other", "not accounted for"), "grey"),
}


STYLE: dict[Any, Any] = {
    "font.size": 8,
    "svg.fonttype": "none",
    # A name with two dollars is not a formula.
    "text.parse_math": False,
    "svg.hashsalt": "offpath",
    "font.family": "sans-serif",
    "text.color": PALETTE["text"],
    "axes.labelcolor": PALETTE["soft"],
    "xtick.color": PALETTE["soft"],
    "ytick.color": PALETTE["text"],
    "axes.edgecolor": PALETTE["line"],
    "grid.color": PALETTE["line"],
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}


def assign_colours(parts: Iterable[str]) -> dict[str, str]:
    """Returns part -> colour: known parts keep their colour, the others take the free ones."""
    names = list(dict.fromkeys(parts))
    colours: dict[str, str] = {}
    for name in names:
        own = COLOUR_OF.get(name)
        if own is not None and (own == "grey" or own not in colours.values()):
            colours[name] = own
    free = [colour for colour in SERIES if colour not in colours.values()]
    # Known parts whose colour is taken get a free one as long as there is one.
    for name in [name for name in names if name in COLOUR_OF and name not in colours]:
        colours[name] = free.pop() if free else COLOUR_OF[name]
    left = cycle(free or SERIES)
    return {name: PALETTE[colours[name] if name in colours else next(left)] for name in names}
