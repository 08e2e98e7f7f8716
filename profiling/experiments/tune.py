"""`offpath tune`: searches this machine's setting with the highest rate within a latency bound.

Optuna proposes settings; each is registered at one TorchServe, with fresh workers. The first rounds
of the run are the windows of the candidates. The later rounds are the fresh rounds of the preset
and of the best other candidate.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import RANGES
from offpath.profiling.core.observer import Observer
from offpath.profiling.core.run import Cell, Failure, Figures, Run
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.experiments.tune_report import (
    MIN_REPLIES,
    Outcome,
    choose_finalists,
    read_trials,
)
from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.parameters import Load
from offpath.profiling.load.window import WindowWatcher, measure_load
from offpath.profiling.load.workload import Workload, check_workload, load_workload
from offpath.profiling.servers.registering import (
    RegisteringServer,
    Setting,
    prepare_archive,
    read_setting,
)
from offpath.profiling.servers.torchserve import RunningTorchServe

NAME = "tune"
# Metric of a start: how long fresh workers took.
READY = "ready_s"
# Seconds of load before the first candidate, because Java compiles its hot code for that long.
SETTLE_S = 10.0
# Windows of each candidate, their length, and the load before the first of them.
REPEATS = 2
LOAD = Load(seconds=4.0, warm_up_s=3.0, min_replies=MIN_REPLIES)
# Pause of the load between two windows of the same workers.
AGAIN_S = 0.5
# Fresh rounds of the preset and the best other candidate, each as long as a candidate's windows.
ROUNDS = 3
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_BATCH_DELAYS_MS = (1, 2, 5, 10, 20)
# Field of a setting -> limits of TorchServe and of handler/config.py.
LIMITS = {
    "batch_size": RANGES["batch_size"],
    "max_batch_delay_ms": RANGES["max_batch_delay_ms"],
    "workers": RANGES["max_workers"],
    "threads": (0, 256),
}
# Random settings before Optuna's model of the results is of use.
STARTUP_TRIALS = 6
# Optuna proposes the best setting again and again once it is sure. After this many proposals one of
# the others is measured.
MOST_PROPOSALS = 30

# The values to search for each field of a setting, ascending.
Space = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TuneChoices:
    """The choices of one search, see `offpath tune --help`.

    Attributes:
        model: name of a model to build an archive of; None where `mar` is given.
        search: field of a setting -> values to search, where the user chose them.
    """

    p95_ms: float
    workload: str
    model: str | None
    mar: Path | None
    preset: str | None
    clients: int
    trials: int
    command: str
    search: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": self.model or str(self.mar and self.mar.name),
            "clients": self.clients,
            "repeats": REPEATS,
            "seconds": LOAD.seconds,
            "warm_up_s": LOAD.warm_up_s,
            "generator": LOAD.generator,
        }


def check_search(chosen: Mapping[str, Sequence[int]]) -> None:
    """Raises WrongOption for an unknown field, or values that TorchServe would ignore."""
    if unknown := chosen.keys() - LIMITS.keys():
        raise WrongOption(f"--search {min(unknown)}: expected one of {', '.join(LIMITS)}")
    for name, values in chosen.items():
        low, high = LIMITS[name]
        if not values or not all(max(low, 1) <= value <= high for value in values):
            raise WrongOption(
                f"--search {name}: values are {list(values)}, expected at least one, each a whole"
                f" number from {max(low, 1)} to {high}"
            )


def make_space(
    cores: int, clients: int, chosen: Mapping[str, Sequence[int]], preset: Setting
) -> Space:
    """Returns the default space of a machine, with the user's own values in it.

    Args:
        clients: a batch above the number of closed-loop clients never fills.
        chosen: field -> values, for the fields that the user chose.
        preset: its values are always in the space, because it is measured first.

    Raises:
        WrongOption: threads of a handler that sets them itself.
    """
    if not preset.threads and "threads" in chosen:
        raise WrongOption(
            "threads cannot be searched: the archive's handler is not offpath's and sets its"
            " threads itself"
        )
    defaults: dict[str, Sequence[int]] = {
        "batch_size": [size for size in BATCH_SIZES if size <= clients],
        "max_batch_delay_ms": MAX_BATCH_DELAYS_MS,
        "workers": [n for n in (1, cores // 2, cores, cores * 3 // 2) if n],
        "threads": [1 << power for power in range(cores.bit_length())] if preset.threads else [0],
    }
    presets = asdict(preset)
    return {
        name: tuple(sorted({*(chosen.get(name) or values), presets[name]}))
        for name, values in defaults.items()
    }


class Proposals:
    """Settings from Optuna's TPE sampler: the preset first, and no setting twice.

    It maximises the rate under two constraints: no failures, and a p95 within the bound.
    """

    def __init__(self, space: Space, preset: Setting, p95_ms: float, seed: int = 0) -> None:
        self._optuna = import_optuna()
        self._space, self._p95_ms = space, p95_ms
        # Positions in the ascending values, so that neighbours are alike.
        self._positions = {
            name: self._optuna.distributions.IntDistribution(0, len(values) - 1)
            for name, values in space.items()
        }
        sampler = self._optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True
        )
        self.study = self._optuna.create_study(direction="maximize", sampler=sampler)
        self._left = [Setting(*values) for values in itertools.product(*space.values())]
        self._trials: dict[Setting, Any] = {}
        self._enqueue(preset)

    def ask(self) -> Setting | None:
        """Returns the next setting; None when the whole space was proposed."""
        if not self._left:
            return None
        for _ in range(MOST_PROPOSALS):
            trial = self.study.ask(self._positions)
            setting = Setting(**{n: values[trial.params[n]] for n, values in self._space.items()})
            if setting in self._left:
                self._left.remove(setting)
                self._trials[setting] = trial
                return setting
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._enqueue(self._left[0])
        return self.ask()

    def tell(self, outcome: Outcome) -> None:
        trial = self._trials[outcome.setting]
        if outcome.error or not outcome.is_answered:
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        trial.set_constraint("failures", outcome.failures / outcome.replies)
        trial.set_constraint("p95", outcome.p95_ms / self._p95_ms - 1)
        self.study.tell(trial, outcome.rate)

    def _enqueue(self, setting: Setting) -> None:
        values = asdict(setting).items()
        self.study.enqueue_trial({name: self._space[name].index(value) for name, value in values})


def import_optuna() -> Any:
    """Imports Optuna and silences its log; raises MissingPackage where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage("optuna", "bench") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass
class Search:
    """Measures candidates and finalists into a run; calls `save` after each window."""

    choices: TuneChoices
    workload: Workload
    server: RegisteringServer
    run: Run
    reference: Setting
    observer: Observer
    save: Callable[[Run], None]

    def settle(self) -> None:
        """Sends load and drops its figures."""
        self.observer.on_step("warm up the server")
        running, _ = self.server.serve(self.reference)
        self._load(running, 0.0, SETTLE_S)

    def try_settings(self, proposals: Proposals) -> None:
        """Measures candidates, the preset first: as many as asked for, or the whole space."""
        trials = self.choices.trials
        for number in range(trials):
            self.observer.on_progress(number, trials)
            setting = proposals.ask()
            if setting is None:
                return
            self.observer.on_step(f"{number + 1}/{trials}: {setting}")
            self._measure(setting, range(REPEATS), LOAD.seconds or 0.0)
            proposals.tell(read_trials(self.run)[setting])

    def measure_finalists(self) -> None:
        """Measures the preset and the best other setting in turn, each with new workers.

        Raises ExpectedError if one of them does not serve any more.
        """
        trials = read_trials(self.run).values()
        for number in range(ROUNDS):
            for setting in choose_finalists(trials, self.reference, self.choices.p95_ms):
                label = f"fresh round {number + 1}/{ROUNDS}: {setting}"
                self.observer.on_step(label)
                seconds = REPEATS * (LOAD.seconds or 0.0)
                self._measure(setting, [REPEATS + number], seconds)
                if self.run.has_failed(str(setting)):
                    raise ExpectedError(f"{label}: {self.run.failures[-1].reason}")

    def _measure(self, setting: Setting, rounds: Sequence[int], seconds: float) -> None:
        """Measures a window for each round, all with the same fresh workers.

        Raises ExpectedError if TorchServe itself died.
        """
        name, cell = str(setting), Cell(self.workload.name, self.choices.clients)
        self.run.variants[name] = asdict(setting)
        try:
            running, ready_s = self.server.serve(setting)
            self.run.add(rounds[0], name, Cell(), {READY: ready_s})
            for number in rounds:
                warm_up_s = LOAD.warm_up_s if number == rounds[0] else AGAIN_S
                self.run.add(number, name, cell, self._load(running, warm_up_s, seconds))
                self.save(self.run)
        except ExpectedError as error:
            if not self.server.is_running():
                raise  # No further setting can be measured.
            self.run.failures.append(Failure(rounds[0], name, str(error)))
            self.observer.on_failure(name, str(error))
            self.save(self.run)

    def _load(self, running: RunningTorchServe, warm_up_s: float, seconds: float) -> Figures:
        window = LOAD.for_window(
            running.predict_url,
            self.workload.paths,
            self.choices.clients,
            warm_up_s=warm_up_s,
            seconds=seconds,
        )
        watcher = WindowWatcher(NAME, running, self.observer)
        return measure_load(watcher, window, find_generator(LOAD.generator))


def run_tune(choices: TuneChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs a search, and calls `save` with everything measured so far.

    Raises:
        ExpectedError: wrong choices, or the server died.
    """
    import_optuna()
    # Making the photographs takes a minute: wrong choices are reported before that.
    check_workload(choices.workload)
    check_search(choices.search)
    is_kept = False
    with work_folder(lambda: is_kept) as folder:
        observer.on_step("build the archive")
        store, cores = folder / "store", count_cores()
        archive, preset = prepare_archive(choices.model, choices.mar, choices.preset, store)
        reference = read_setting(preset, cores, archive.has_our_handler)
        space = make_space(cores, choices.clients, choices.search, reference)
        size = math.prod(map(len, space.values()))
        observer.on_step(f"{choices.trials} of {size} candidates, about 20 s each")
        proposals = Proposals(space, reference, choices.p95_ms)
        workload = load_workload(choices.workload, observer.on_step)
        run = Run(
            NAME,
            choices.command,
            {**choices.settings, "archive": hash_file(archive.path)},
            workloads={workload.name: workload.facts},
            details={"reference": asdict(reference), "preset": preset, "p95_ms": choices.p95_ms},
        )
        try:
            with RegisteringServer(archive) as server:
                search = Search(choices, workload, server, run, reference, observer, save)
                search.settle()
                search.try_settings(proposals)
                search.measure_finalists()
        except ExpectedError:
            is_kept = True  # The message names a log in it.
            raise
    return run


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
