"""`offpath tune`: searches this machine's setting with the highest rate within a latency bound.

Optuna proposes settings, the runner measures them, each registered at one TorchServe with fresh
workers. The first rounds of the run are the windows of the candidates. The later rounds are the
fresh rounds of the preset and of the best other candidate.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offpath.archive.model_config import SERVER_SETTINGS
from offpath.handler.errors import ExpectedError, MissingPackage, WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.experiments.tune_report import (
    MIN_REPLIES,
    Outcome,
    choose_finalists,
    find_bound,
    is_hopeless,
    rank,
    read_trials,
)
from offpath.profiling.load.plan import Load, find_generator
from offpath.profiling.load.window import measure_load
from offpath.profiling.load.workload import Workload, check_workload, load_workload
from offpath.profiling.servers.registering import (
    RegisteredArchive,
    RegisteringServer,
    ServerDied,
    Setting,
    prepare_archive,
    read_setting,
)
from offpath.profiling.servers.torchserve import RunningTorchServe

NAME = "tune"
# Metric of a start: how long fresh workers took.
READY = "ready_s"
# Pause of the load between two windows of the same workers.
AGAIN_S = 0.5
# Start of a load generator, for each window.
GENERATOR_S = 1.0
# Assumed start of workers until one was measured.
START_S = 8.0
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_BATCH_DELAYS_MS = (1, 2, 5, 10, 20)
# Field of a setting -> limits of TorchServe and of handler/config.py.
LIMITS = {
    "batch_size": SERVER_SETTINGS["batchSize"],
    "max_batch_delay_ms": SERVER_SETTINGS["maxBatchDelay"],
    "workers": SERVER_SETTINGS["maxWorkers"],
    "threads": (0, 256),
}
# Random settings before Optuna's model of the results is of use.
STARTUP_TRIALS = 6
# Optuna proposes the best setting again and again once it is sure.
MOST_PROPOSALS = 30


@dataclass(frozen=True)
class TuneChoices:
    """The choices of one search, see `offpath tune --help`.

    Attributes:
        p95_ms: None for a bound from the preset's own p95.
        model: name of a model to build an archive of; None where `mar` is given.
        space: field of a setting -> values to search, where the user chose them.
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
    load: Load
    settle_s: float
    command: str
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchSpace:
    """The values to search for each field of a setting, ascending."""

    batch_size: tuple[int, ...]
    max_batch_delay_ms: tuple[int, ...]
    workers: tuple[int, ...]
    threads: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            low, high = LIMITS[name]
            if not values or not all(low <= value <= high for value in values):
                raise WrongOption(
                    f"values of {name} are {list(values)}: expected at least one, each a whole"
                    f" number from {max(low, 1)} to {high}"
                )

    @property
    def values(self) -> dict[str, tuple[int, ...]]:
        """Values by field, in the order of a setting's fields."""
        return {name: getattr(self, name) for name in LIMITS}

    def list_settings(self) -> list[Setting]:
        """Lists all settings of the space."""
        return [Setting(*one) for one in itertools.product(*self.values.values())]


def make_space(
    cores: int,
    clients: int,
    chosen: Mapping[str, Sequence[int]],
    has_our_handler: bool = True,
) -> SearchSpace:
    """Returns the default space of a machine, with the user's own values in it.

    Args:
        clients: a batch above the number of closed-loop clients never fills.
        chosen: field -> values, for the fields that the user chose.
        has_our_handler: other handlers set their threads themselves.

    Raises:
        WrongOption: values that TorchServe would ignore, or threads of another handler.
    """
    if not has_our_handler and chosen.get("threads"):
        raise WrongOption(
            "threads cannot be searched: the archive's handler is not offpath's and sets its"
            " threads itself"
        )
    powers = [1 << power for power in range(cores.bit_length())]
    defaults: dict[str, Sequence[int]] = {
        "batch_size": [size for size in BATCH_SIZES if size <= clients],
        "max_batch_delay_ms": MAX_BATCH_DELAYS_MS,
        "workers": [n for n in (1, cores // 2, cores, cores * 3 // 2) if n],
        "threads": powers if has_our_handler else [0],
    }
    merged = {name: chosen.get(name) or values for name, values in defaults.items()}
    return SearchSpace(**{name: tuple(sorted(set(v))) for name, v in merged.items()})


def propose_setting(
    space: SearchSpace, scores: Mapping[Setting, float], seed: int
) -> Setting | None:
    """Returns the first setting that Optuna's TPE proposes and that was not measured yet.

    Args:
        scores: measured settings in their order; higher is better.

    Returns:
        None where the whole space was measured.

    Raises:
        MissingPackage: optuna is not installed.
    """
    left = [setting for setting in space.list_settings() if setting not in scores]
    if not left:
        return None
    optuna = import_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(
            seed=seed + len(scores),
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            # A proposal without a value yet keeps the next ones away from it.
            constant_liar=True,
        ),
    )
    # Positions in the ascending values, so that neighbours are alike.
    positions = {
        name: optuna.distributions.IntDistribution(0, len(values) - 1)
        for name, values in space.values.items()
    }
    for setting, score in scores.items():
        # The preset may lie outside of the space.
        if all(value in space.values[name] for name, value in asdict(setting).items()):
            params = {
                name: space.values[name].index(value) for name, value in asdict(setting).items()
            }
            trial = optuna.trial.create_trial(params=params, distributions=positions, value=score)
            study.add_trial(trial)
    for _ in range(MOST_PROPOSALS):
        params = study.ask(positions).params
        setting = Setting(**{n: of[params[n]] for n, of in space.values.items()})
        if setting not in scores:
            return setting
    return random.Random(seed).choice(left)


def import_optuna() -> Any:
    """Imports Optuna and silences its log; raises MissingPackage where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage("optuna", "bench") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Tuning:
    """The experiment of a search: a variant is a setting, measured in one cell."""

    name = NAME
    variants: Sequence[Variant] = ()

    def __init__(self, choices: TuneChoices, workload: Workload, server: RegisteringServer) -> None:
        self.choices, self._workload, self._server = choices, workload, server
        self._generator = find_generator(choices.load.generator)
        self.cells: Sequence[Cell] = [Cell(workload.name, choices.clients)]

    def prepare(self, variant: Variant, folder: Path) -> None:
        """Does nothing: all settings share one archive."""

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[RunningTorchServe, Figures]]:
        """Registers the variant's setting with fresh workers."""
        with self._server.serving(Setting(**turn.variant.facts)) as (running, ready_s):
            yield running, {READY: ready_s}

    def measure(self, target: RunningTorchServe, cell: Cell, turn: Turn) -> Figures:
        """Measures one window; a fresh round lasts as long as all windows of a candidate."""
        choices = self.choices
        is_fresh = turn.round >= choices.repeats
        windows = choices.repeats if is_fresh else 1
        seconds = (choices.load.seconds or 0.0) * windows
        warm_up_s = choices.load.warm_up_s if turn.is_first else AGAIN_S
        try:
            return self._load(target, warm_up_s, seconds, turn.observer)
        except ExpectedError as error:
            if target.is_running():
                raise
            raise ServerDied(str(error)) from error

    def settle(self, setting: Setting, observer: Observer) -> None:
        """Sends load and drops its figures: Java compiles its hot code for tens of seconds."""
        with self._server.serving(setting) as (running, _):
            self._load(running, 0.0, self.choices.settle_s, observer)

    def _load(
        self,
        running: RunningTorchServe,
        warm_up_s: float,
        seconds: float,
        observer: Observer,
    ) -> Figures:
        plan = self.choices.load.plan(
            running.predict_url,
            self._workload.paths,
            self.choices.clients,
            warm_up_s=warm_up_s,
            seconds=seconds,
            min_replies=MIN_REPLIES,
        )
        return measure_load(NAME, running, plan, self._generator, observer)


@dataclass
class Search:
    """Chooses which settings the runner measures, and in which order."""

    tuning: Tuning
    run: Run
    space: SearchSpace
    reference: Setting
    observer: Observer
    save: Callable[[Run], None]

    @property
    def choices(self) -> TuneChoices:
        """The user's choices."""
        return self.tuning.choices

    def announce(self) -> None:
        """Tells the observer what will be measured and about how long it takes."""
        whole_s = self.choices.settle_s + self._estimate_s(0)
        self.observer.on_step(
            f"{self.choices.trials} of {len(self.space.list_settings())} candidates, then"
            f" {self.choices.rounds} fresh rounds of the best and the preset:"
            f" {format_minutes(whole_s)}"
        )

    def try_settings(self) -> None:
        """Measures candidates, the preset first, until there are as many as asked for.

        The search ends early where several candidates are all far beyond the bound.
        """
        choices = self.choices
        while True:
            outcomes = read_trials(self.run)
            self.observer.on_progress(len(outcomes), choices.trials)
            bound_ms = find_bound(choices.p95_ms, outcomes, self.reference)
            if is_hopeless(outcomes.values(), bound_ms):
                text = "the search ends early: no candidate is near the bound"
                self.observer.on_step(text)
                return
            setting = self._choose(outcomes, bound_ms)
            if setting is None or len(outcomes) >= choices.trials:
                return
            left = format_minutes(self._estimate_s(len(outcomes)))
            self.observer.on_step(
                f"{len(outcomes) + 1}/{choices.trials}, {left} left"
                f"{describe_best(outcomes.values(), bound_ms)}: {setting}"
            )
            self._measure(setting, range(choices.repeats))

    def _choose(self, outcomes: Mapping[Setting, Outcome], bound_ms: float) -> Setting | None:
        if self.reference not in outcomes:
            return self.reference
        scores = {setting: one.score(bound_ms) for setting, one in outcomes.items()}
        return propose_setting(self.space, scores, self.choices.load.seed)

    def measure_finalists(self) -> None:
        """Measures the preset and the best other setting afresh, in turn, each with new workers.

        Raises:
            ExpectedError: one of them does not serve any more.
        """
        outcomes, choices = read_trials(self.run), self.choices
        bound_ms = find_bound(choices.p95_ms, outcomes, self.reference)
        finalists = choose_finalists(outcomes.values(), self.reference, bound_ms)
        for number in range(choices.rounds):
            for setting in finalists:
                label = f"fresh round {number + 1}/{choices.rounds}"
                self.observer.on_step(f"{label}: {setting}")
                self._measure(setting, [choices.repeats + number])
                if self.run.has_failed(str(setting)):
                    failure = self.run.failures[-1]
                    raise ExpectedError(f"{label}: {setting}: {failure.reason}")

    def _measure(self, setting: Setting, rounds: Iterable[int]) -> None:
        """Measures all rounds with the same workers."""
        variant = Variant(str(setting), asdict(setting), stays_open=True)
        self.run.variants.setdefault(variant.name, asdict(setting))
        runner = Runner(
            self.tuning,
            self.run,
            Schedule(),
            WindowObserver(self.observer),
            lambda: self.save(self.run),
        )
        with ExitStack() as stack:
            for number in rounds:
                if not self.run.has_failed(variant.name):
                    runner.take_turn(number, variant, stack)

    def _estimate_s(self, done: int) -> float:
        starts_s = [row.value or 0.0 for row in self.run.rows if row.metric == READY]
        return estimate_s(self.choices, self.space, starts_s, done)


class WindowObserver:
    """Passes on replies and failures; the search itself announces its steps."""

    def __init__(self, observer: Observer) -> None:
        self.on_replies, self.on_failure = observer.on_replies, observer.on_failure

    def on_step(self, text: str) -> None:
        """Ignores the runner's steps."""

    def on_progress(self, done: int, total: int) -> None:
        """Ignores the runner's count."""


def run_tune(choices: TuneChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs a whole search.

    Args:
        save: called with everything measured so far.

    Returns:
        the run, without fresh rounds where no candidate is within the bound.

    Raises:
        ExpectedError: wrong choices, or the server died.
    """
    import_optuna()
    find_generator(choices.load.generator)
    # Making the photographs takes a minute: wrong choices are reported before that.
    check_workload(choices.workload)
    died: list[ServerDied] = []
    with work_folder(lambda: bool(died)) as folder:
        observer.on_step("build the archive")
        archive = prepare_archive(choices.model, choices.mar, choices.preset, folder / "store")
        cores = count_cores()
        space = make_space(cores, choices.clients, choices.space, archive.has_our_handler)
        reference = read_setting(archive.preset, cores, archive.has_our_handler)
        workload = load_workload(choices.workload, choices.load.seed, observer.on_step)
        run = begin_run(choices, archive, reference, workload)
        try:
            with RegisteringServer(archive) as server:
                tuning = Tuning(choices, workload, server)
                search = Search(tuning, run, space, reference, observer, save)
                search.announce()
                if choices.settle_s > 0:
                    observer.on_step("warm up the server")
                    tuning.settle(reference, observer)
                search.try_settings()
                search.measure_finalists()
        except ServerDied as error:
            died.append(error)
            raise
    return run


def begin_run(
    choices: TuneChoices,
    archive: RegisteredArchive,
    reference: Setting,
    workload: Workload,
) -> Run:
    """Returns a run without rows."""
    settings = {
        "model": choices.model or str(choices.mar and choices.mar.name),
        "archive": archive.identity,
        "clients": choices.clients,
        "repeats": choices.repeats,
        "seconds": choices.load.seconds,
        "warm_up_s": choices.load.warm_up_s,
        "generator": choices.load.generator,
    }
    return Run(
        NAME,
        choices.command,
        settings,
        workloads={workload.name: workload.facts},
        details={
            "reference": asdict(reference),
            "preset": archive.preset,
            "p95_ms": choices.p95_ms,
        },
    )


def estimate_s(
    choices: TuneChoices, space: SearchSpace, starts_s: Sequence[float], done: int
) -> float:
    """Estimates the seconds that the rest of a search takes, with the fresh rounds.

    Args:
        starts_s: measured starts of workers.
        done: candidates measured so far.
    """
    start_s = statistics.median(starts_s or [START_S]) + choices.load.warm_up_s
    windows_s = choices.repeats * (choices.load.seconds or 0.0)
    trial_s = start_s + windows_s + choices.repeats * (AGAIN_S + GENERATOR_S)
    # The preset may lie outside of the space.
    left = max(0, min(choices.trials, len(space.list_settings()) + 1) - done)
    finals_s = 2 * choices.rounds * (start_s + windows_s + GENERATOR_S)
    return left * trial_s + finals_s


def format_minutes(seconds: float) -> str:
    """Returns `about N minutes`, at least one."""
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} minute" + ("s" if minutes > 1 else "")


def describe_best(outcomes: Iterable[Outcome], bound_ms: float) -> str:
    """Describes the best outcome within the bound; empty where there is none yet."""
    best = rank([one for one in outcomes if one.is_within(bound_ms)], bound_ms)[:1]
    return "".join(f", best {one.rate:.0f} req/s p95 {one.p95_ms:.0f} ms" for one in best)
