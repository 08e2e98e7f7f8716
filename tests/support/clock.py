"""A clock that is set manually."""

from __future__ import annotations


class Clock:
    """A clock that starts at 0 and counts seconds."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Moves the clock forward."""
        self.now_s += seconds
