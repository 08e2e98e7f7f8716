"""Makes foreign text safe to print on a terminal."""

from __future__ import annotations

import re

# All control characters but the tab: a terminal obeys them, and a line break forges a line. Those
# that end lines or turn the direction of other text. Lone surrogates, which UTF-8 cannot express.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Replaces each control character and lone surrogate by an escape such as `\x1b`."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """Makes each line printable and keeps the line breaks."""
    return "\n".join(map(printable, text.split("\n")))
