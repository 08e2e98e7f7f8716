"""A counting bar on stderr, where that is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@contextlib.contextmanager
def counting_bar(
    what: str, is_shown: bool = True
) -> Iterator[Callable[[int, int], None]]:
    """Yields the function to call with (done, total)."""
    console = Console(stderr=True)
    with Progress(
        *(TextColumn(what), BarColumn(), MofNCompleteColumn()),
        console=console,
        transient=True,
        disable=not (is_shown and console.is_terminal),
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
