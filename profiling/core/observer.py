"""The interface through which a measurement tells how it goes on."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is told how a run goes on."""

    def on_step(self, text: str) -> None:
        """Is called when a step of the run begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Receives the live count of replies inside a window."""

    def on_progress(self, done: int, total: int) -> None:
        """Receives the number of measured cells, and of all cells."""

    def on_failure(self, variant: str, reason: str) -> None:
        """Is called when a variant is left out from now on."""
