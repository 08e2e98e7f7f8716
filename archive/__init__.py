"""Builds the .mar: model + handler + model-config.yaml."""

from __future__ import annotations

from collections.abc import Callable

# Receives one line of progress for the user; the command line prints it on stderr.
Say = Callable[[str], None]


def say_nothing(line: str) -> None:
    """Drops the line."""
