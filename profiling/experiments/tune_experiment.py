"""What a search measures: one setting of a TorchServe, registered with fresh workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from offpath.handler.errors import ExpectedError, WrongOption
from offpath.profiling.core.experiment import Turn, Variant
from offpath.profiling.core.run import Cell, Figures
from offpath.profiling.experiments.tune_space import SearchSpace
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.window import RepliesObserver, measure_load
from offpath.profiling.load.workload import Workload
from offpath.profiling.servers.registering import (
    RegisteringServer,
    ServerDied,
    Setting,
)
from offpath.profiling.servers.torchserve import RunningTorchServe

NAME = "tune"
# Of a start's figures: how long fresh workers took.
READY = "ready_s"
# A window goes on until it has as many, for a minute at most: a p95 of fewer says nothing.
MIN_REPLIES = 60
# Between two windows of the same workers the load pauses for a moment.
AGAIN_S = 0.5
# A generator's own start, for each window.
GENERATOR_S = 1.0
# A start of workers, until one was seen.
START_S = 8.0


@dataclass(frozen=True)
class TuneChoices:
    """What the user asked for; see `offpath tune --help`.

    Attributes:
        p95_ms: None for a bound from the preset's own p95.
        space: field of a setting -> what is searched, where the user chose.
    """

    p95_ms: float | None
    workload: str
    model: str | None
    mar: Path | None
    preset: str | None
    clients: int
    trials: int
    repeats: int
    rounds: int
    seconds: float
    warm_up_s: float
    settle_s: float
    generator: str
    seed: int
    command: str
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.p95_ms is not None and not 0 < self.p95_ms < 1e9:
            raise WrongOption(
                f"--p95-ms is {self.p95_ms!r}: expected milliseconds above 0"
            )
        if (self.model is None) == (self.mar is None):
            raise WrongOption(
                "no archive: expected --model NAME or --mar FILE, one of them"
            )


class Tuning:
    """The experiment: a variant's facts are a setting; it is measured in one cell."""

    name = NAME
    variants: Sequence[Variant] = ()

    def __init__(
        self, choices: TuneChoices, workload: Workload, server: RegisteringServer
    ) -> None:
        self.choices, self._workload, self._server = choices, workload, server
        self._generator = find_generator(choices.generator)
        self.cells: Sequence[Cell] = [Cell(workload.name, choices.clients)]

    def prepare(self, variant: Variant, folder: Path) -> None:
        """See `Experiment`: there is one archive for all."""

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[RunningTorchServe, Figures]]:
        """See `Experiment`: fresh workers."""
        with self._server.serving(Setting(**turn.variant.facts)) as (running, ready_s):
            yield running, {READY: ready_s}

    def measure(self, target: RunningTorchServe, cell: Cell, turn: Turn) -> Figures:
        """See `Experiment`; a fresh round is as long as all windows of a trial."""
        choices = self.choices
        is_fresh = turn.round >= choices.repeats
        seconds = choices.seconds * (choices.repeats if is_fresh else 1)
        warm_up_s = choices.warm_up_s if turn.is_first else AGAIN_S
        try:
            return self.load(target, warm_up_s, seconds, turn.observer)
        except ExpectedError as error:
            if target.is_running():
                raise
            raise ServerDied(str(error)) from error

    def load(
        self,
        running: RunningTorchServe,
        warm_up_s: float,
        seconds: float,
        observer: RepliesObserver,
    ) -> Figures:
        """One window."""
        plan = LoadPlan(
            url=running.predict_url,
            paths=self._workload.paths,
            clients=self.choices.clients,
            warm_up_s=warm_up_s,
            seconds=seconds,
            seed=self.choices.seed,
            min_replies=MIN_REPLIES,
        )
        return measure_load(NAME, running, plan, self._generator, observer)

    def settle(self, setting: Setting, observer: RepliesObserver) -> None:
        """Load that is thrown away: Java compiles its hot code for tens of seconds."""
        with self._server.serving(setting) as (running, _):
            self.load(running, 0.0, self.choices.settle_s, observer)


def estimate_s(
    choices: TuneChoices, space: SearchSpace, starts_s: Sequence[float], done: int
) -> float:
    """About how long the rest of a search takes, fresh rounds among it; the settling apart."""
    start_s = statistics.median(starts_s or [START_S]) + choices.warm_up_s
    windows_s = choices.repeats * choices.seconds
    trial_s = start_s + windows_s + choices.repeats * (AGAIN_S + GENERATOR_S)
    # The preset may be one more than the space has.
    left = max(0, min(choices.trials, space.size + 1) - done)
    finals_s = 2 * choices.rounds * (start_s + windows_s + GENERATOR_S)
    return left * trial_s + finals_s
