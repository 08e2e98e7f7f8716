"""What a benchmark shows while it runs: the step, the replies so far and their rate."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class LiveProgress:
    """One live line on stderr; where stderr is no terminal, one plain line per step."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[rate]}"),
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
        """A step begins."""
        self._progress.update(self._task, description=text, rate="")
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Replies so far in this window."""
        if replies:
            self._progress.update(self._task, rate=f"{replies / elapsed_s:.0f} req/s")

    def on_failure(self, server: str, reason: str) -> None:
        """A server is left out from now on."""
        self._console.print(
            f"[yellow]without {server}:[/] {escape(reason)}", highlight=False
        )

    def on_measured(self) -> None:
        """Nothing to show."""
