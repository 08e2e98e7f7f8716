"""An experiment: variants times cells of a grid, and how a cell is measured; and what runs it.

A new question is a class with these members (variants, cells, `opened`, `measure`), and the tables
and charts that show it (`report/document.py`).

The runner takes rounds of variants in turn (A B C A B C); a variant that fails is left out. Each
variant is opened again for each of its rounds. So the others' memory and threads cannot touch its
figures, and differences between starts show in the spread. Or all stay open side by side, and all
but the measured variant are idle. Then turns follow within seconds, on cores of nearly one speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from offpath.errors import ExpectedError
from offpath.profiling.core.figures import format_clients
from offpath.profiling.core.run import Cell, Failure, Figures, Run

Target = TypeVar("Target")
# The cell of the figures of a start, which belong to no cell of the grid.
START = Cell()


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


@dataclass(frozen=True)
class Variant:
    """A thing that the experiment compares with others.

    Attributes:
        facts: how it is set up; kept in the run.
        cells: cells in which it is measured; None for all cells of the experiment.
        stays_open: open it once for all rounds, even where the others start again in each.
    """

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[Cell, ...] | None = None
    stays_open: bool = False


@dataclass(frozen=True)
class Turn:
    """The turn of a variant in a round; `is_first`: it was opened for this and had no load yet."""

    round: int
    variant: Variant
    observer: Observer
    is_first: bool = True


class Experiment(Protocol[Target]):
    """The members that the runner needs."""

    name: str
    variants: Sequence[Variant]
    cells: Sequence[Cell]

    def prepare(self, variant: Variant, folder: Path) -> None:
        """Builds what the variant needs, once; an ExpectedError leaves the variant out."""

    def opened(self, turn: Turn) -> AbstractContextManager[tuple[Target, Figures]]:
        """Yields target and figures of its start; an ExpectedError leaves the variant out."""

    def measure(self, target: Target, cell: Cell, turn: Turn) -> Figures:
        """Measures one cell.

        The figure `other_cores` tells how many cores were busy with something else. Above
        NOISY_CORES the report doubts the cell.

        Raises:
            ExpectedError: it answered wrongly or died, and the variant is left out.
        """


@dataclass(frozen=True)
class Schedule:
    """The number of rounds, and whether all variants are opened once and stay open side by side."""

    rounds: int = 1
    side_by_side: bool = False


class Runner(Generic[Target]):
    """Appends the figures of an experiment to a run; calls `save` after each cell."""

    def __init__(
        self,
        experiment: Experiment[Target],
        run: Run,
        schedule: Schedule,
        observer: Observer,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self._experiment, self._run = experiment, run
        self._schedule, self._observer, self._save = schedule, observer, save
        self._done = 0
        # Variants that stay open until the runner ends.
        self._kept: dict[str, tuple[Target, Figures]] = {}

    def prepare(self, folder: Path) -> None:
        """Builds what the variants need; a variant that cannot be built is left out."""
        for variant in self._experiment.variants:
            self._observer.on_step(f"{variant.name}: build")
            try:
                self._experiment.prepare(variant, folder / variant.name)
            except ExpectedError as error:
                self._leave_out(0, variant, error)

    def run_rounds(self) -> None:
        with ExitStack() as stack:
            for round_ in range(self._schedule.rounds):
                for variant in self._experiment.variants:
                    if not self._run.has_failed(variant.name):
                        self.take_turn(round_, variant, stack)

    def take_turn(self, round_: int, variant: Variant, stack: ExitStack) -> None:
        turn = Turn(round_, variant, self._observer)
        try:
            if self._schedule.side_by_side or variant.stays_open:
                turn = replace(turn, is_first=variant.name not in self._kept)
                if turn.is_first:
                    opened = stack.enter_context(self._open(turn))
                    self._kept[variant.name] = opened
                self._measure_cells(self._kept[variant.name], turn)
            else:
                with self._open(turn) as opened:
                    self._measure_cells(opened, turn)
        except ExpectedError as error:
            self._leave_out(round_, variant, error)
        self._save()

    def _open(self, turn: Turn) -> AbstractContextManager[tuple[Target, Figures]]:
        self._observer.on_step(f"{self._label(turn)}: start")
        return self._experiment.opened(turn)

    def _measure_cells(self, opened: tuple[Target, Figures], turn: Turn) -> None:
        target, start = opened
        name = turn.variant.name
        if turn.is_first and start:
            self._run.add(turn.round, name, START, start)
        for cell in self._cells(turn.variant):
            self._observer.on_step(f"{self._label(turn)}: {format_cell(cell)}")
            figures = self._experiment.measure(target, cell, turn)
            self._run.add(turn.round, name, cell, figures)
            self._done += 1
            self._observer.on_progress(self._done, self._total())
            self._save()

    def _leave_out(self, round_: int, variant: Variant, error: ExpectedError) -> None:
        self._run.failures.append(Failure(round_, variant.name, str(error)))
        self._observer.on_failure(variant.name, str(error))

    def _cells(self, variant: Variant) -> Sequence[Cell]:
        return self._experiment.cells if variant.cells is None else variant.cells

    def _total(self) -> int:
        going = [v for v in self._experiment.variants if not self._run.has_failed(v.name)]
        return max(self._done, self._schedule.rounds * sum(len(self._cells(v)) for v in going))

    def _label(self, turn: Turn) -> str:
        round_ = f"round {turn.round + 1}/{self._schedule.rounds}"
        return f"{round_}: {turn.variant.name}"


def format_cell(cell: Cell) -> str:
    parts = [
        cell.workload,
        format_clients(cell.clients) if cell.clients else "",
        f"batch {cell.batch_size}" if cell.batch_size else "",
    ]
    return ", ".join(part for part in parts if part) or "measure"
