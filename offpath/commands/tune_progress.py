"""What `offpath tune` shows while it runs: a bar over the candidates and the best of them."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


class TuneProgress:
    """One live line on stderr; where stderr is no terminal, plain lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[best]}", style="green"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("start", total=None, rate="", best="")

    def __enter__(self) -> TuneProgress:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, text: str) -> None:
        """A step begins."""
        self._progress.update(self._task, description=text, rate="")
        self._say(text)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Replies so far in this window."""
        if replies:
            self._progress.update(self._task, rate=f"{replies / elapsed_s:.0f} req/s")

    def on_failure(self, server: str, reason: str) -> None:
        """Nothing to show: a candidate that does not serve stands in the table."""

    def on_measured(self) -> None:
        """Nothing to show."""

    def on_trials(self, done: int, total: int, best: str) -> None:
        """Candidates measured so far."""
        self._progress.update(self._task, completed=done, total=total, best=best)
        if done:
            self._say(f"  {best}")

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)
