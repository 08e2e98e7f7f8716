"""Makes foreign text safe to print on a terminal."""

from __future__ import annotations

import re

# All control characters but the tab: a terminal obeys them, and a line break forges a line.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""Replaces each control character by an escape such as `\x1b`."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def printable_lines(text: str) -> str:
    """Makes each line printable and keeps the line breaks."""
    return "\n".join(map(printable, text.split("\n")))
