"""Live progress of a measuring command: the step, the rate, the share that is done."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


class LiveProgress:
    """One live line on stderr; where stderr is no terminal, one plain line per step."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[rate]}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("start", total=None, rate="")

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text), rate="")
        if not self._console.is_terminal:
            self._console.print(escape(text), highlight=False)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        if replies:
            self._progress.update(self._task, rate=f"{replies / elapsed_s:.0f} req/s")

    def on_progress(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def on_failure(self, variant: str, reason: str) -> None:
        self._console.print(
            f"[yellow]without {escape(variant)}:[/] {escape(reason)}", highlight=False
        )
