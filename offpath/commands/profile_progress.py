"""What a profile shows while it runs: the step and a bar over the images."""

from __future__ import annotations

from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

Self = TypeVar("Self", bound="ProfileProgress")


class ProfileProgress:
    """A live bar on stderr; where stderr is no terminal, one plain line per new step."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("start", total=None)
        self._said: set[str] = set()

    def __enter__(self: Self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, text: str) -> None:
        """A step begins; one that comes again in each turn is said once."""
        self._progress.update(self._task, description=text)
        if not self._console.is_terminal and text not in self._said:
            self._console.print(text, highlight=False)
        self._said.add(text)

    def on_batches(self, images: int, of: int) -> None:
        """Images handled so far."""
        self._progress.update(self._task, completed=images, total=of)
