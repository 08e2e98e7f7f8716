"""An experiment: variants times cells of a grid, and how a cell is measured. `runner.py` runs it.

A new question is a class with these members (variants, cells, `opened`, `measure`), and the tables
and charts that show it (`report/document.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from offpath.profiling.core.run import Cell, Figures

Target = TypeVar("Target")


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
