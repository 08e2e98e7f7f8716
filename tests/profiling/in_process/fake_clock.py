"""A clock for tests that measure time."""

from __future__ import annotations


class FakeClock:
    """Stands still until `pass_s`; whole numbers stay exact."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
