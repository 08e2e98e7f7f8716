"""A clock that is set by hand."""

from __future__ import annotations


class Clock:
    """Seconds, from 0."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Moves it."""
        self.now_s += seconds
