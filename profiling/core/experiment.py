"""An experiment: variants x cells of a grid, and how one is measured. `runner.py` runs it.

A new question is a class with these members (variants, cells, `opened`, `measure`), and the tables
and charts that show it (`report/declared.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Cell, Figures

Target = TypeVar("Target")


class RunAborted(ExpectedError):
    """Ends the whole run, where another ExpectedError leaves one variant out."""


class Observer(Protocol):
    """Told how a run goes on."""

    def on_step(self, text: str) -> None:
        """A step of the run begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Live count inside a window."""

    def on_progress(self, done: int, total: int) -> None:
        """Cells measured so far, of all."""

    def on_failure(self, variant: str, reason: str) -> None:
        """A variant is left out from now on."""


@dataclass(frozen=True)
class Variant:
    """One of the things compared.

    Attributes:
        name: as it is asked for and shown.
        facts: how it is set up; kept in the run, and must be alike for runs to be merged.
        cells: where on the grid it is measured; None for all of the experiment's.
        stays_open: opened once for all rounds, also where the others start afresh in each.
    """

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[Cell, ...] | None = None
    stays_open: bool = False


@dataclass(frozen=True)
class Turn:
    """One variant's turn in a round.

    Attributes:
        is_first: whether its target was opened for this turn, and has had no load yet.
    """

    round: int
    variant: Variant
    observer: Observer
    is_first: bool = True


class Experiment(Protocol[Target]):
    """What the runner needs of one."""

    name: str
    variants: Sequence[Variant]
    cells: Sequence[Cell]

    def prepare(self, variant: Variant, folder: Path) -> None:
        """Builds what the variant needs, once, before the first round.

        Raises:
            ExpectedError: it cannot be built; the variant is left out.
        """

    def opened(self, turn: Turn) -> AbstractContextManager[tuple[Target, Figures]]:
        """Starts the variant: what is measured, and the figures of the start itself.

        Raises:
            ExpectedError: it does not start; the variant is left out.
        """

    def measure(self, target: Target, cell: Cell, turn: Turn) -> Figures:
        """Measures one cell.

        A figure `other_cores` says how many cores were busy with something else: above NOISY_CORES
        the cell is measured again.

        Raises:
            ExpectedError: wrong answers, or it died; the variant is left out.
        """
