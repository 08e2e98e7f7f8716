"""A counting bar on stderr, where that is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# A part of `offpath batch` may take a minute, and a rate needs several.
SPEED_PERIOD_S = 600.0


class RateColumn(ProgressColumn):
    """The rate, per second."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:.0f}/s")


@contextlib.contextmanager
def counting_bar(
    what: str, is_shown: bool = True, has_rate: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Yields the function to call with (done, total).

    Args:
        has_rate: the bar also shows the rate and the remaining time.
    """
    console = Console(stderr=True)
    columns: list[ProgressColumn] = [
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
    ]
    if has_rate:
        columns += [RateColumn(), TimeRemainingColumn()]
    with Progress(
        *columns,
        console=console,
        transient=True,
        speed_estimate_period=SPEED_PERIOD_S,
        disable=not (is_shown and console.is_terminal),
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
