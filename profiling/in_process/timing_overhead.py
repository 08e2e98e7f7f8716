"""What our handler's own timings cost: batches with them and without, in turns, in one process."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from offpath.profiling.in_process.loaded_handler import LoadedHandler
from offpath.profiling.in_process.profile_result import BatchSample

# The order on-off-off-on-off-on-on-off meets each of the pictures' positions equally often with
# and without; a plain on-off-on-off would always time the same pictures.
BLOCK = 8


def is_off(batch: int) -> bool:
    """Whether the batch with this number goes without timings (the Thue-Morse sequence)."""
    return batch.bit_count() % 2 == 1


class NullTimer:
    """A StageTimer that measures nothing."""

    def stage(self, stage: object) -> AbstractContextManager[None]:
        """Times nothing."""
        return nullcontext()

    def shared(self, shares: object) -> AbstractContextManager[None]:
        """Times nothing."""
        return nullcontext()

    def read(self) -> SimpleNamespace:
        """Nothing was measured."""
        return SimpleNamespace(seconds={}, total_s=0.0)


class OverheadCollector:
    """Switches stage timer, Server-Timing header and stage counters of our handler on and off."""

    def __init__(self, handler: LoadedHandler) -> None:
        from offpath.handler import pipeline

        self._pipeline: Any = pipeline
        self._instance = handler.instance
        self._timer = self._pipeline.StageTimer
        self._config = self._instance.config
        self._batch = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See `profiling.drive.Collector`."""
        if is_off(self._batch):
            self._switch_off()
        self._batch += 1
        try:
            yield
        finally:
            self._switch_on()

    def take_batch(self) -> tuple[dict[str, float], dict[str, float]]:
        """The whole is what counts here."""
        return {}, {}

    def _switch_off(self) -> None:
        self._pipeline.StageTimer = NullTimer
        self._instance.config = dataclasses.replace(self._config, server_timing=False)
        self._instance._metrics.count_batch = lambda *_: None

    def _switch_on(self) -> None:
        self._pipeline.StageTimer = self._timer
        self._instance.config = self._config
        vars(self._instance._metrics).pop("count_batch", None)


def split_batches(
    batches: Sequence[BatchSample], first: int = 0
) -> tuple[list[BatchSample], list[BatchSample]]:
    """The batches with timings, and those without; `first` is the number of the first one."""
    numbered = list(enumerate(batches, first))
    on = [sample for number, sample in numbered if not is_off(number)]
    off = [sample for number, sample in numbered if is_off(number)]
    return on, off


def list_block_costs(batches: Sequence[BatchSample]) -> list[float]:
    """What timings cost in each block of eight batches, as a share: 0.01 is 1 %."""
    costs = []
    for start in range(0, len(batches) - BLOCK + 1, BLOCK):
        on, off = split_batches(batches[start : start + BLOCK], start)
        costs.append(sum(b.total_s for b in on) / sum(b.total_s for b in off) - 1.0)
    return costs


def summarise_overhead(batches: Sequence[BatchSample]) -> tuple[float, float]:
    """The median of the blocks' costs and its standard error, both as shares.

    Raises:
        ValueError: fewer than two blocks of eight batches.
    """
    costs = list_block_costs(batches)
    if len(costs) < 2:
        raise ValueError(f"{len(batches)} batches; expected at least {2 * BLOCK}")
    low, _, high = statistics.quantiles(costs, n=4)
    # From the quartiles, which a disturbed block does not move; 1.25 is the median's price.
    error = 1.25 * (high - low) / 1.349 / len(costs) ** 0.5
    return statistics.median(costs), error
