"""Progress on stderr, where that is a terminal: of a measuring command, and of things counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
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


# A part of `offpath batch` may take a minute, and an estimate needs several.
SPEED_PERIOD_S = 600.0


@contextlib.contextmanager
def counting_bar(what: str, is_shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yields the function to call with (done, total)."""
    console = Console(stderr=True)
    with Progress(
        *(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        console=console,
        transient=True,
        speed_estimate_period=SPEED_PERIOD_S,
        disable=not (is_shown and console.is_terminal),
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
