"""The order of a run, what stays open, and what remains of one that fails; no clock, no server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.core.experiment import Runner, Schedule, Turn, Variant
from offpath.profiling.core.run import Cell, Figures
from tests.profiling.quick_server import Listener
from tests.profiling.runs import make_run

CELLS = (Cell("small"), Cell("large"))


class Fake:
    """Measures nothing: its clock is a counter, and it remembers what is open.

    Args:
        fails: what is raised, by step: "a prepare", "a open", "a large".
    """

    name = "fake"

    def __init__(
        self,
        *names: str,
        fails: dict[str, BaseException] | None = None,
    ) -> None:
        self.variants: Sequence[Variant] = [Variant(name) for name in names]
        self.cells: Sequence[Cell] = CELLS
        self.fails = fails or {}
        self.clock, self.open_now, self.opened_ever = 0, [], []

    def _step(self, name: str, what: str) -> None:
        self.clock += 1
        if f"{name} {what}" in self.fails:
            raise self.fails[f"{name} {what}"]

    def prepare(self, variant: Variant, folder: Path) -> None:
        self._step(variant.name, "prepare")

    @contextlib.contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[str, Figures]]:
        self._step(turn.variant.name, "open")
        self.open_now.append(turn.variant.name)
        self.opened_ever.append(turn.variant.name)
        try:
            yield turn.variant.name, {"ready_s": float(self.clock)}
        finally:
            self.open_now.remove(turn.variant.name)

    def measure(self, target: str, cell: Cell, turn: Turn) -> Figures:
        self._step(target, cell.workload)
        return {"elapsed_s": float(self.clock)}


def run(fake: Fake, schedule: Schedule = Schedule(rounds=2)):
    result, listener = make_run("fake"), Listener()
    saved: list[int] = []
    runner = Runner(fake, result, schedule, listener, lambda: saved.append(1))
    try:
        runner.prepare(Path("unused"))
        runner.run_rounds()
    finally:
        assert fake.open_now == []
    return result, listener, len(saved)


def list_order(result) -> list[tuple[int, str, str]]:
    """Round, variant and workload of each window."""
    return [
        (row.round, row.variant, row.workload) for row in result.rows if row.metric == "elapsed_s"
    ]


ROUND = [("a", "small"), ("a", "large"), ("b", "small"), ("b", "large")]
INTERLEAVED = [(n, *where) for n in (0, 1) for where in ROUND]


def test_rounds_are_interleaved_and_saved_after_each_cell() -> None:
    fake = Fake("a", "b")
    result, listener, saves = run(fake)
    assert list_order(result) == INTERLEAVED
    assert fake.opened_ever == ["a", "b", "a", "b"]
    starts = [(r.round, r.variant) for r in result.rows if r.metric == "ready_s"]
    assert starts == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    # After each of 8 cells, and after each of 4 turns.
    assert saves == 12
    assert listener.progress == [(n, 8) for n in range(1, 9)]
    assert "round 2/2: b: large" in listener.steps


def test_side_by_side_each_is_opened_once_and_all_take_turns() -> None:
    fake = Fake("a", "b")
    result, _, _ = run(fake, Schedule(2, side_by_side=True))
    assert list_order(result) == INTERLEAVED
    assert fake.opened_ever == ["a", "b"]
    starts = [(r.round, r.variant) for r in result.rows if r.metric == "ready_s"]
    assert starts == [(0, "a"), (0, "b")]


def test_a_variant_that_stays_open_has_cells_of_its_own() -> None:
    fake = Fake("b")
    kept = Variant("a", cells=(Cell("large"),), stays_open=True)
    fake.variants = [kept, *fake.variants]
    result, listener, _ = run(fake)
    assert fake.opened_ever == ["a", "b", "b"]
    assert [where for where in list_order(result) if where[1] == "a"] == [
        (0, "a", "large"),
        (1, "a", "large"),
    ]
    assert listener.progress[-1] == (6, 6)


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(
    ("fails", "kept"),
    [
        pytest.param("a prepare", [], id="not-built"),
        pytest.param("a open", [], id="not-started"),
        pytest.param("a large", [(0, "a", "small")], id="died"),
    ],
)
def test_one_that_fails_is_left_out_with_what_it_has(fails, kept, side_by_side):
    fake = Fake("a", "b", fails={fails: ExpectedError("its reason")})
    result, listener, _ = run(fake, Schedule(2, side_by_side))
    rest = [where for where in INTERLEAVED if where[1] == "b"]
    assert list_order(result) == kept + rest
    (failure,) = result.failures
    assert (failure.round, failure.variant, failure.reason) == (0, "a", "its reason")
    assert listener.failures == [("a", "its reason")]


def test_a_run_that_ends_closes_what_is_open_and_keeps_what_it_has() -> None:
    fake = Fake("a", "b", fails={"b large": KeyboardInterrupt()})
    result, listener = make_run("fake"), Listener()
    runner = Runner(fake, result, Schedule(2, side_by_side=True), listener)
    with pytest.raises(KeyboardInterrupt):
        runner.run_rounds()
    assert fake.open_now == []
    assert list_order(result) == [(0, *where) for where in ROUND[:3]]
    assert result.failures == []
