"""A search from choices to result: candidates in turn, then fresh rounds of the finalists."""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.experiments.tuning.choice import (
    choose_finalists,
    find_bound,
    is_hopeless,
    rank,
    summarise_trials,
)
from offpath.profiling.experiments.tuning.result import (
    FinalRound,
    Trial,
    TuneResult,
    Window,
    check_same_search,
)
from offpath.profiling.experiments.tuning.sampler import (
    SAMPLERS,
    import_optuna,
    next_candidate,
)
from offpath.profiling.experiments.tuning.space import (
    Candidate,
    SearchSpace,
    make_space,
    read_candidate,
)
from offpath.profiling.experiments.tuning.window import MIN_REPLIES, measure_window
from offpath.profiling.load.plan import Generator, LoadPlan, find_generator
from offpath.profiling.load.window import Observer
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registered_archive import (
    RegisteredArchive,
    prepare_archive,
)
from offpath.profiling.servers.registering import RegisteringServer, ServerDied
from offpath.profiling.servers.torchserve import RunningTorchServe

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
    sampler: str
    generator: str
    seed: int
    command: str
    settle_s: float
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.p95_ms is not None and not 0 < self.p95_ms < 1e9:
            raise ExpectedError(
                f"--p95-ms is {self.p95_ms!r}: expected milliseconds above 0"
            )
        if (self.model is None) == (self.mar is None):
            raise ExpectedError(
                "no archive: expected --model NAME or --mar FILE, one of them"
            )
        if self.sampler not in SAMPLERS:
            raise ExpectedError(
                f"no sampler {self.sampler!r}: expected one of {', '.join(SAMPLERS)}"
            )


class TuneObserver(Observer, Protocol):
    """Told how the search goes on."""

    def on_trials(self, done: int, total: int, best: str) -> None:
        """Candidates measured so far, and the best of them in words."""


@dataclass
class Search:
    """What the steps of a search share."""

    choices: TuneChoices
    archive: RegisteredArchive
    workload: Workload
    generator: Generator
    observer: TuneObserver

    def measure(
        self, running: RunningTorchServe, name: str, warm_up_s: float, seconds: float
    ) -> Window:
        """One window of load."""
        plan = LoadPlan(
            url=running.predict_url,
            paths=self.workload.paths,
            clients=self.choices.clients,
            warm_up_s=warm_up_s,
            seconds=seconds,
            seed=self.choices.seed,
            min_replies=MIN_REPLIES,
        )
        return measure_window(running, name, plan, self.generator, self.observer)


def run_tuning(
    choices: TuneChoices,
    observer: TuneObserver,
    save: Callable[[TuneResult], None],
    earlier: TuneResult | None = None,
    earlier_path: Path = Path(),
) -> tuple[TuneResult, RegisteredArchive]:
    """Runs a whole search, or the rest of one.

    Args:
        save: called with everything measured so far, after each candidate and each fresh round.
        earlier: an interrupted or finished search to go on with.

    Returns:
        the result, without fresh rounds where no candidate is within the bound; and the archive.

    Raises:
        ExpectedError: wrong choices, an earlier search that is another, a server that dies.
    """
    generator = find_generator(choices.generator)
    if choices.sampler == "tpe":
        import_optuna()
    cores = count_cores()
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    with store_folder() as folder:
        observer.on_step("build the archive")
        archive = prepare_archive(
            choices.model, choices.mar, choices.preset, folder / "store"
        )
        reference = read_candidate(archive.preset, cores, archive.has_our_handler)
        space = make_space(
            cores, choices.clients, choices.space, archive.has_our_handler
        )
        search = describe_search(choices, archive, workload)
        result = TuneResult(
            command=choices.command,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            search=search,
            reference=reference,
        )
        if earlier is not None:
            check_same_search(earlier, search, earlier_path)
            result.trials = earlier.trials
        whole_s = choices.settle_s + estimate_s(choices, space, result.trials)
        observer.on_step(
            f"{choices.trials} candidates of {space.size}, then {choices.rounds} fresh rounds of"
            f" the best and the preset: {format_minutes(whole_s)}"
        )
        with RegisteringServer(archive) as server:
            steps = Search(choices, archive, workload, generator, observer)
            settle(steps, server, reference)
            search_candidates(steps, server, space, result, save)
            measure_finals(steps, server, result, save)
    return result, archive


@contextmanager
def store_folder() -> Iterator[Path]:
    """A temporary folder that stays when the server died: its log is in there."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-tune-"))
    try:
        yield folder
    except ServerDied:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def describe_search(
    choices: TuneChoices, archive: RegisteredArchive, workload: Workload
) -> dict[str, Any]:
    """What must be alike for measurements to belong together."""
    host = describe_host()
    # Our own revision changes with every word of documentation; the archive holds what is measured.
    host.pop("offpath")
    return {
        "model": choices.model or str(choices.mar and choices.mar.name),
        "archive": archive.identity,
        "workload": {"name": workload.name, "identity": workload.identity},
        "clients": choices.clients,
        "repeats": choices.repeats,
        "seconds": choices.seconds,
        "warm_up_s": choices.warm_up_s,
        "generator": choices.generator,
        "host": host,
    }


def settle(steps: Search, server: RegisteringServer, reference: Candidate) -> None:
    """Load that is thrown away: Java compiles its hot code for tens of seconds after its start."""
    if steps.choices.settle_s <= 0:
        return
    steps.observer.on_step("warm up the server")
    with server.serving(reference) as (running, _):
        steps.measure(running, "the preset", 0.0, steps.choices.settle_s)


def search_candidates(
    steps: Search,
    server: RegisteringServer,
    space: SearchSpace,
    result: TuneResult,
    save: Callable[[TuneResult], None],
) -> None:
    """Measures candidates, the preset first, until there are as many as asked for.

    It ends before that when all of several are far beyond the bound: more of them would only take
    minutes to say the same.
    """
    choices = steps.choices
    report_best(steps, result)
    while len(result.trials) < choices.trials:
        bound_ms = find_bound(choices.p95_ms, result.trials, result.reference)
        summaries = summarise_trials(result.trials)
        if is_hopeless(summaries, bound_ms):
            steps.observer.on_step("the search ends early: nothing is near the bound")
            return
        candidate = (
            result.reference
            if all(s.candidate != result.reference for s in summaries)
            else next_candidate(
                choices.sampler, space, summaries, bound_ms, choices.seed
            )
        )
        if candidate is None:
            return
        left = format_minutes(estimate_s(choices, space, result.trials))
        steps.observer.on_step(
            f"{len(result.trials) + 1}/{choices.trials}, {left} left: {candidate}"
        )
        result.trials.append(measure_trial(steps, server, candidate))
        save(result)
        report_best(steps, result)


def estimate_s(
    choices: TuneChoices, space: SearchSpace, trials: Sequence[Trial]
) -> float:
    """About how long the rest of a search takes, fresh rounds among it; the settling apart."""
    starts_s = [trial.ready_s for trial in trials if trial.ready_s] or [START_S]
    start_s = statistics.median(starts_s) + choices.warm_up_s
    windows_s = choices.repeats * choices.seconds
    trial_s = start_s + windows_s + choices.repeats * (AGAIN_S + GENERATOR_S)
    # The preset may be one more than the space has.
    left = max(0, min(choices.trials, space.size + 1) - len(trials))
    finals_s = 2 * choices.rounds * (start_s + windows_s + GENERATOR_S)
    return left * trial_s + finals_s


def format_minutes(seconds: float) -> str:
    """Whole minutes, never none."""
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} minute" + ("s" if minutes > 1 else "")


def measure_trial(
    steps: Search, server: RegisteringServer, candidate: Candidate
) -> Trial:
    """A candidate's windows; what it could not do is part of the trial, a dead server is not."""
    choices = steps.choices
    try:
        with server.serving(candidate) as (running, ready_s):
            windows = [
                steps.measure(
                    running,
                    str(candidate),
                    choices.warm_up_s if n == 0 else AGAIN_S,
                    choices.seconds,
                )
                for n in range(choices.repeats)
            ]
    except ServerDied:
        raise
    except ExpectedError as error:
        return Trial(candidate, [], 0.0, str(error))
    return Trial(candidate, windows, ready_s)


def measure_finals(
    steps: Search,
    server: RegisteringServer,
    result: TuneResult,
    save: Callable[[TuneResult], None],
) -> None:
    """Measures the preset and the best other candidate afresh, in turn, each with new workers."""
    choices = steps.choices
    finalists = choose_finalists(
        summarise_trials(result.trials),
        result.reference,
        find_bound(choices.p95_ms, result.trials, result.reference),
    )
    result.finals = []
    for number, candidate in itertools.product(range(choices.rounds), finalists):
        steps.observer.on_step(
            f"fresh round {number + 1}/{choices.rounds}: {candidate}"
        )
        with server.serving(candidate) as (running, _):
            window = steps.measure(
                running,
                str(candidate),
                choices.warm_up_s,
                choices.seconds * choices.repeats,
            )
        result.finals.append(FinalRound(number, candidate, window))
        save(result)


def report_best(steps: Search, result: TuneResult) -> None:
    """Tells the observer of the best candidate so far."""
    p95_ms = find_bound(steps.choices.p95_ms, result.trials, result.reference)
    best = rank(summarise_trials(result.trials), p95_ms)[:1]
    text = "nothing within the bound yet"
    if best and best[0].is_within(p95_ms):
        text = f"best {best[0].rate:.0f} req/s, p95 {best[0].p95_ms:.0f} ms"
    steps.observer.on_trials(len(result.trials), steps.choices.trials, text)
