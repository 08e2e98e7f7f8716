"""How max batch delay, batch size and workers trade: each turned alone, from the preset's setting.

One TorchServe serves all of it over the register API, as in a search (`profiling/tuning/`); every
setting gets fresh workers and meets each number of clients in turn. Rounds are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.experiments.tradeoff_result import TradeoffPoint, TradeoffResult
from offpath.profiling.experiments.tuning.result import Window
from offpath.profiling.experiments.tuning.search import format_minutes, store_folder
from offpath.profiling.experiments.tuning.space import Candidate, read_candidate
from offpath.profiling.experiments.tuning.window import MIN_REPLIES, measure_window
from offpath.profiling.load.model_under_test import name_model
from offpath.profiling.load.plan import Generator, LoadPlan, find_generator
from offpath.profiling.load.window import Observer
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registered_archive import prepare_archive
from offpath.profiling.servers.registering import RegisteringServer, ServerDied
from offpath.profiling.servers.torchserve import RunningTorchServe

DELAY, SIZE, WORKERS = "max_batch_delay_ms", "batch_size", "workers"
# Setting -> its name on the charts.
KNOBS = {DELAY: "max batch delay, ms", SIZE: "batch size", WORKERS: "workers"}
# A start of workers, for the announcement of how long a run takes.
START_S = 8.0


@dataclass(frozen=True)
class TradeoffChoices:
    """What the user asked for; see `offpath bench tradeoff --help`."""

    model: str
    preset: str | None
    workload: str
    knobs: Mapping[str, tuple[int, ...]]
    clients: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up_s: float
    settle_s: float
    generator: str
    seed: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """For the result."""
        left_out = ("workload", "command", "knobs")
        kept = {k: v for k, v in asdict(self).items() if k not in left_out}
        return {**kept, "model": name_model(self.model)}


def list_candidates(
    reference: Candidate, knobs: Mapping[str, Sequence[int]], cores: int
) -> list[Candidate]:
    """Each knob's settings around the reference; one that several knobs share comes once.

    Turning the workers turns their threads: the cores are shared among them.
    """
    found = [
        turn(reference, knob, value, cores)
        for knob, values in knobs.items()
        for value in values
    ]
    return list(dict.fromkeys([reference, *found]))


def turn(reference: Candidate, knob: str, value: int, cores: int) -> Candidate:
    """The reference with one setting changed."""
    if getattr(reference, knob) == value:
        return reference
    if knob == WORKERS:
        return replace(reference, workers=value, threads=max(1, cores // value))
    return replace(reference, **{knob: value})


def estimate_s(choices: TradeoffChoices, candidates: int) -> float:
    """About how long a run takes, in seconds."""
    window_s = choices.warm_up_s + choices.seconds + 1.0
    one_s = START_S + len(choices.clients) * window_s
    return choices.settle_s + choices.rounds * candidates * one_s


def run_tradeoff(
    choices: TradeoffChoices,
    observer: Observer,
    save: Callable[[TradeoffResult], None],
) -> TradeoffResult:
    """Runs it.

    Args:
        save: called with all points so far, after each.

    Raises:
        ExpectedError: wrong choices, or a server that dies.
    """
    generator, cores = find_generator(choices.generator), count_cores()
    generator.check(choices.seconds, None)
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    with store_folder() as folder:
        observer.on_step("build the archive")
        archive = prepare_archive(choices.model, None, choices.preset, folder / "store")
        reference = read_candidate(archive.preset, cores, archive.has_our_handler)
        candidates = list_candidates(reference, choices.knobs, cores)
        result = begin_result(choices, workload, reference)
        whole_s = estimate_s(choices, len(candidates))
        observer.on_step(
            f"{len(candidates)} settings, rounds of all: {choices.rounds};"
            f" {format_minutes(whole_s)}"
        )
        with RegisteringServer(archive) as server:
            sweep = TradeoffSweep(choices, workload, generator, observer, result, save)
            sweep.settle(server)
            for round_ in range(choices.rounds):
                for candidate in candidates:
                    sweep.measure(server, round_, candidate)
    return result


def begin_result(
    choices: TradeoffChoices, workload: Workload, reference: Candidate
) -> TradeoffResult:
    """A result without points; each knob has the reference's own value too."""
    return TradeoffResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workload={"name": workload.name, **workload.facts},
        reference=reference,
        knobs={
            knob: sorted({*values, getattr(reference, knob)})
            for knob, values in choices.knobs.items()
        },
    )


@dataclass
class TradeoffSweep:
    """What the windows of a run share."""

    choices: TradeoffChoices
    workload: Workload
    generator: Generator
    observer: Observer
    result: TradeoffResult
    save: Callable[[TradeoffResult], None]

    def settle(self, server: RegisteringServer) -> None:
        """Load that is thrown away: Java compiles its hot code for tens of seconds."""
        if self.choices.settle_s <= 0:
            return
        self.observer.on_step("warm up the server")
        with server.serving(self.result.reference) as (running, _):
            plan = self._plan(running, max(self.choices.clients))
            plan = replace(plan, warm_up_s=0.0, seconds=self.choices.settle_s)
            measure_window(running, "the preset", plan, self.generator, self.observer)

    def measure(
        self, server: RegisteringServer, round_: int, candidate: Candidate
    ) -> None:
        """One setting under each number of clients; one that does not serve is left out."""
        name = str(candidate)
        if name in self.result.failures:
            return
        label = f"round {round_ + 1}/{self.choices.rounds}: {name}"
        self.observer.on_step(f"{label}: start")
        try:
            with server.serving(candidate) as (running, _):
                for clients, window in self._windows(running, name, label):
                    point = TradeoffPoint(round_, candidate, clients, window)
                    self.result.points.append(point)
                    self.save(self.result)
        except ServerDied:
            raise
        except ExpectedError as error:
            self.result.failures[name] = str(error)
            self.observer.on_failure(name, str(error))

    def _windows(
        self, running: RunningTorchServe, name: str, label: str
    ) -> Iterator[tuple[int, Window]]:
        for clients in self.choices.clients:
            self.observer.on_step(f"{label}: {clients} clients")
            plan = self._plan(running, clients)
            yield clients, measure_window(
                running, name, plan, self.generator, self.observer
            )

    def _plan(self, running: RunningTorchServe, clients: int) -> LoadPlan:
        return LoadPlan(
            url=running.predict_url,
            paths=self.workload.paths,
            clients=clients,
            warm_up_s=self.choices.warm_up_s,
            seconds=self.choices.seconds,
            seed=self.choices.seed,
            min_replies=MIN_REPLIES,
        )
