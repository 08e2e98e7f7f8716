"""`offpath tune`: the setting with the most throughput within a latency, on the machine at hand.

Optuna chooses what the runner measures. The run is the study: its first rounds are a trial's
windows (`--repeats`), what comes after them the fresh rounds of the two finalists. The latency
bound is no part of what a study belongs to: another one judges the same measurements anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer, Variant
from offpath.profiling.core.run import Run, check_alike
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.tune_choice import (
    Outcome,
    choose_finalists,
    find_bound,
    is_hopeless,
    rank,
    read_trials,
)
from offpath.profiling.experiments.tune_experiment import (
    NAME,
    READY,
    TuneChoices,
    Tuning,
    estimate_s,
)
from offpath.profiling.experiments.tune_space import (
    SearchSpace,
    import_optuna,
    make_space,
    next_setting,
)
from offpath.profiling.load.plan import find_generator
from offpath.profiling.load.workload import Workload, check_workload, load_workload
from offpath.profiling.servers.registered_archive import (
    RegisteredArchive,
    prepare_archive,
)
from offpath.profiling.servers.registering import (
    RegisteringServer,
    ServerDied,
    Setting,
    read_setting,
)


def run_tune(
    choices: TuneChoices,
    observer: Observer,
    save: Callable[[Run], None],
    earlier: Run | None = None,
) -> Run:
    """Runs a whole search, or the rest of one.

    Args:
        save: called with everything measured so far.
        earlier: an interrupted or finished search to go on with.

    Returns:
        the run, without fresh rounds where no candidate is within the bound.

    Raises:
        ExpectedError: wrong choices, an earlier search that is another, a server that dies.
    """
    import_optuna()
    find_generator(choices.generator)
    # What is wrong with either is said before photographs are made, which takes a minute.
    check_workload(choices.workload)
    died: list[ServerDied] = []
    with work_folder(lambda: bool(died)) as folder:
        observer.on_step("build the archive")
        archive = prepare_archive(
            choices.model, choices.mar, choices.preset, folder / "store"
        )
        workload = load_workload(choices.workload, choices.seed, observer.on_step)
        run, reference = begin_run(choices, archive, workload)
        if earlier is not None:
            go_on_with(run, earlier)
        space = make_space(
            count_cores(), choices.clients, choices.space, archive.has_our_handler
        )
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
    choices: TuneChoices, archive: RegisteredArchive, workload: Workload
) -> tuple[Run, Setting]:
    """A run without rows, and the preset's setting; `settings` are what a study belongs to."""
    reference = read_setting(archive.preset, count_cores(), archive.has_our_handler)
    settings = {
        "model": choices.model or str(choices.mar and choices.mar.name),
        "archive": archive.identity,
        **{
            name: getattr(choices, name)
            for name in ("clients", "repeats", "seconds", "warm_up_s", "generator")
        },
    }
    run = Run(NAME, choices.command, settings)
    run.workloads[workload.name] = workload.facts
    run.details.update(
        reference=asdict(reference), preset=archive.preset, p95_ms=choices.p95_ms
    )
    return run, reference


def go_on_with(run: Run, earlier: Run) -> None:
    """Takes over the whole trials of an earlier search; its fresh rounds are measured again.

    Raises:
        ExpectedError: it is another search.
    """

    def compared(one: Run) -> Run:
        # Our revision changes with every word of documentation; the archive holds what is measured.
        host = {name: fact for name, fact in one.host.items() if name != "offpath"}
        return replace(one, host=host)

    parts = ("experiment", "host", "settings", "workloads")
    try:
        check_alike(compared(earlier), compared(run), parts)
    except ExpectedError as error:
        raise ExpectedError(
            f"the saved search is another one: {error}; name another --json, or delete it"
        ) from error
    repeats = run.settings["repeats"]
    run.failures = [failure for failure in earlier.failures if failure.round < repeats]
    whole = {row.variant for row in earlier.rows if row.round == repeats - 1}
    whole |= {failure.variant for failure in run.failures}
    run.variants = {
        name: facts for name, facts in earlier.variants.items() if name in whole
    }
    run.rows = [
        row for row in earlier.rows if row.variant in whole and row.round < repeats
    ]


@dataclass
class Search:
    """Chooses what the runner measures."""

    tuning: Tuning
    run: Run
    space: SearchSpace
    reference: Setting
    observer: Observer
    save: Callable[[Run], None]

    @property
    def choices(self) -> TuneChoices:
        """What the user asked for."""
        return self.tuning.choices

    def announce(self) -> None:
        """Says what comes, and about how long it takes."""
        whole_s = self.choices.settle_s + self._estimate_s(0)
        self.observer.on_step(
            f"{self.choices.trials} candidates of {self.space.size}, then"
            f" {self.choices.rounds} fresh rounds of the best and the preset:"
            f" {format_minutes(whole_s)}"
        )

    def try_settings(self) -> None:
        """Measures settings, the preset first, until there are as many as asked for.

        It ends before that when all of several are far beyond the bound: more of them would only
        take minutes to say the same.
        """
        choices = self.choices
        while True:
            outcomes = read_trials(self.run)
            self.observer.on_progress(len(outcomes), choices.trials)
            bound_ms = find_bound(choices.p95_ms, outcomes, self.reference)
            if is_hopeless(outcomes.values(), bound_ms):
                text = "the search ends early: nothing is near the bound"
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

    def _choose(
        self, outcomes: Mapping[Setting, Outcome], bound_ms: float
    ) -> Setting | None:
        if self.reference not in outcomes:
            return self.reference
        scores = {setting: one.score(bound_ms) for setting, one in outcomes.items()}
        return next_setting(self.space, scores, self.choices.seed)

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
        """All rounds with the same workers."""
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
        starts_s = [row.value for row in self.run.rows if row.metric == READY]
        return estimate_s(self.choices, self.space, [s or 0.0 for s in starts_s], done)


class WindowObserver:
    """Passes on what happens inside a window; the search itself says its steps."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_step(self, text: str) -> None:
        """See `Observer`."""

    def on_progress(self, done: int, total: int) -> None:
        """See `Observer`."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """See `Observer`."""
        self._observer.on_replies(replies, elapsed_s)

    def on_failure(self, variant: str, reason: str) -> None:
        """See `Observer`."""
        self._observer.on_failure(variant, reason)


def format_minutes(seconds: float) -> str:
    """Whole minutes, never none."""
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} minute" + ("s" if minutes > 1 else "")


def describe_best(outcomes: Iterable[Outcome], bound_ms: float) -> str:
    """The best so far; empty where there is none yet."""
    best = rank([one for one in outcomes if one.is_within(bound_ms)], bound_ms)[:1]
    return "".join(
        f", best {one.rate:.0f} req/s p95 {one.p95_ms:.0f} ms" for one in best
    )
