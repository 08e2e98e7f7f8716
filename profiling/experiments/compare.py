"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores.

Variants of the run are the servers and the limits; cells are workloads by clients.

Rounds take the variants in turn (A B C A B C); a variant that fails is left out. Each server is
started again in each round. So the others' memory and threads cannot touch its figures, and
differences between starts show in the spread. Or all keep running side by side, and all but the
measured one are idle. Then turns follow within seconds, on cores of nearly one speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.run import Cell, Figures, Observer, Run
from offpath.profiling.core.statistics import DECODE, FORWARD
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.load.core_limits import LimitMeter
from offpath.profiling.load.generators import Call, Load, check_generator
from offpath.profiling.load.load_window import RunningServer, WindowWatcher, measure_load
from offpath.profiling.load.model_under_test import (
    ExpectedReply,
    ModelUnderTest,
    classify_reference,
    load_model,
    name_model,
)
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.registry import make_servers
from offpath.profiling.servers.server_adapter import BATCH_SIZE, Adapter

PHOTOGRAPHS_CHECKED = 4
# Bound of the difference between DCT-scaled and exact decoding.
MAX_PROBABILITY_DIFFERENCE = 0.03
TIMEOUT_S = 120.0
NAME = "compare"
LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0
# Seconds of load before a window of a server that is already warm on these photographs.
TURN_WARM_UP_S = 2.0
# Estimated seconds of a start with the check of the replies.
START_S = 10.0
# The cell of the figures of a start, which belong to no cell of the grid.
START = Cell()


def make_checks(
    model: ModelUnderTest, photographs: Sequence[bytes]
) -> list[tuple[bytes, ExpectedReply]]:
    """Returns the photographs on which the reference leads most, and what it says.

    Seeded weights make near ties, where two correct decoders may differ.
    """
    answered = [(photo, classify_reference(model, photo)) for photo in photographs[:16]]
    answered.sort(key=lambda pair: -pair[1].lead)
    return answered[:PHOTOGRAPHS_CHECKED]


def check_replies(
    server: str, url: str, call: Call, checks: Sequence[tuple[bytes, ExpectedReply]]
) -> float:
    """Returns the largest difference of a top probability from the reference.

    Args:
        checks: bodies as the load sends them, with what a right reply says.

    Raises:
        ExpectedError: another label, or a probability too far from the reference.
    """
    largest = 0.0
    # trust_env: no proxy before loopback. verify: a server under test has signed its certificate.
    with httpx.Client(trust_env=False, verify=False, timeout=TIMEOUT_S) as client:
        for body, expected in checks:
            try:
                reply = client.post(url, content=body, headers=call.all_headers)
            except httpx.TransportError as error:
                raise ExpectedError(
                    f"server {server!r} did not answer a good photograph: {error!r}"
                ) from error
            label, probability = read_best(server, call, reply)
            difference = abs(probability - expected.probability)
            if label != expected.label or difference > MAX_PROBABILITY_DIFFERENCE:
                raise ExpectedError(
                    f"server {server!r} answered {label!r} with {probability:.4f}; the reference is"
                    f" {expected.label!r} with {expected.probability:.4f} (at most"
                    f" {MAX_PROBABILITY_DIFFERENCE} apart): its speed would not be comparable"
                )
            largest = max(largest, difference)
    return largest


def read_best(server: str, call: Call, reply: httpx.Response) -> tuple[str, float]:
    if reply.status_code != 200:
        raise ExpectedError(
            f"server {server!r} answered {reply.status_code} to a good photograph:"
            f" {reply.text[:300]}"
        )
    try:
        # max: ValueError without a label.
        return max(call.read_reply(reply.content).items(), key=lambda pair: pair[1])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ExpectedError(
            f"server {server!r} gave a reply that cannot be read ({error!r}):"
            f" {reply.text[:300]}"
        ) from error


@dataclass(frozen=True)
class Choices:
    """The user's choices.

    Attributes:
        variants: servers with other settings, see `servers.registry`.
        rates: rates of the open loop; none for the closed loop.
        side_by_side: start each server once and keep all running.
        batch_size: largest batch of each server.
        workers: number of workers that each server runs with; None for one per core.
    """

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    clients: tuple[int, ...]
    load: Load
    rounds: int
    command: str
    variants: tuple[str, ...] = ()
    side_by_side: bool = False
    batch_size: int = BATCH_SIZE
    workers: int | None = None
    rates: tuple[float, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        return [
            Cell(workload, clients, rate=rate)
            for workload in self.workloads
            for clients in self.clients
            for rate in self.rates or (0.0,)
        ]

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": name_model(self.model),
            "clients": list(self.clients),
            **asdict(self.load),
            "rate": list(self.rates) or None,
            "side_by_side": self.side_by_side,
            "batch_size": self.batch_size,
            "workers": self.workers,
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }

    @property
    def estimated_s(self) -> float:
        """Rough length of all rounds; builds and slow servers take further time."""
        warm_up_s = self.load.warm_up_s
        again_s = min(warm_up_s, TURN_WARM_UP_S)
        turn_s = len(self.cells) * (again_s + self.load.seconds)
        first_s = START_S + turn_s + len(self.workloads) * (warm_up_s - again_s)
        next_s = turn_s if self.side_by_side else first_s
        servers = len(self.servers) + len(self.variants)
        limits_s = (len(self.workloads) + 1) * LIMIT_SECONDS * self.rounds
        return limits_s + servers * (first_s + (self.rounds - 1) * next_s)


@dataclass
class StartedServer:
    """A started server.

    Attributes:
        differences: how far its answers are off, by workload that it was loaded with.
    """

    running: RunningServer
    differences: dict[str, float] = field(default_factory=dict)


class Comparison:
    """A run of servers and limits.

    `save` is called with the run before anything is built (it may refuse to go on), and with what
    was measured so far after each cell. Everything that is built goes into `folder`.

    Raises:
        ExpectedError: no such generator, photographs, model or server.
    """

    def __init__(
        self,
        choices: Choices,
        run: Run,
        observer: Observer,
        save: Callable[[Run], None],
        folder: Path,
    ) -> None:
        self._choices, self._run, self._folder = choices, run, folder
        self._observer, self._save = observer, save
        check_generator(choices.load)
        model = load_model(choices.model)
        # Refused before photographs are made, which takes a minute.
        self._servers = {adapter.name: adapter for adapter in self._find_servers(model)}
        self._workloads = {n: load_workload(n, observer.on_step) for n in choices.workloads}
        self._checks = {n: make_checks(model, it.read()) for n, it in self._workloads.items()}
        self._run.workloads.update({name: it.facts for name, it in self._workloads.items()})
        self._run.variants.update({DECODE: {}, FORWARD: {}})
        for name, adapter in self._servers.items():
            self._run.variants[name] = adapter.settings
        # Servers that run side by side.
        self._kept: dict[str, StartedServer] = {}
        self._done = 0

    def _find_servers(self, model: ModelUnderTest) -> list[Adapter]:
        """Returns the chosen servers and variants that can run here.

        Raises ExpectedError if none of them can run.
        """
        choices, runnable, not_run = self._choices, [], self._run.not_run
        workers = choices.workers or count_cores()
        for adapter in make_servers(
            choices.servers, model, workers, choices.variants, choices.batch_size
        ):
            reason = adapter.why_not()
            if reason is None:
                runnable.append(adapter)
            else:
                not_run[adapter.name] = reason
                self._observer.on_failure(adapter.name, reason)
        if not runnable:
            reasons = "; ".join(f"{name}: {why}" for name, why in not_run.items())
            raise ExpectedError(f"none of the servers can run here: {reasons}")
        return runnable

    def take_rounds(self) -> None:
        self._save(self._run)
        for name, adapter in self._servers.items():
            self._observer.on_step(f"{name}: build")
            with self._run.leaving_out(0, name, self._observer):
                adapter.prepare(self._folder / name)
        meter = LimitMeter(self._choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
        with meter, ExitStack() as stack:
            for round_ in range(self._choices.rounds):
                if not self._run.has_failed(DECODE):
                    with self._run.leaving_out(round_, DECODE, self._observer):
                        self._measure_limits(round_, meter)
                for name in self._servers:
                    if not self._run.has_failed(name):
                        with self._run.leaving_out(round_, name, self._observer):
                            self._take_turn(round_, name, stack)
                        self._save(self._run)

    def _take_turn(self, round_: int, name: str, stack: ExitStack) -> None:
        with ExitStack() as turn:
            if name in self._kept:
                started = self._kept[name]
            elif self._choices.side_by_side:
                started = self._kept[name] = stack.enter_context(self._start(round_, name))
            else:
                started = turn.enter_context(self._start(round_, name))
            for cell in self._choices.cells:
                self._say(round_, name, cell.describe())
                self._add(round_, name, cell, self._measure(name, started, cell))

    @contextmanager
    def _start(self, round_: int, name: str) -> Iterator[StartedServer]:
        """Starts a server, and measures the time until its first answer."""
        self._say(round_, name, "start")
        adapter, first = self._servers[name], next(iter(self._checks.values()))[:1]
        with adapter.running(self._folder / name) as running:
            check_replies(name, running.predict_url, adapter.call, first)
            ready_s = round(time.perf_counter() - running.began_s, 2)
            self._run.add(round_, name, START, {"ready_s": ready_s})
            yield StartedServer(running)

    def _measure_limits(self, round_: int, meter: LimitMeter) -> None:
        for name, workload in self._workloads.items():
            self._say(round_, DECODE, name)
            self._add(round_, DECODE, Cell(name), meter.measure_decode(workload.paths))
        self._say(round_, FORWARD, "measure")
        self._add(round_, FORWARD, START, meter.measure_forward())

    def _say(self, round_: int, name: str, text: str) -> None:
        self._observer.on_step(f"round {round_ + 1}/{self._choices.rounds}: {name}: {text}")

    def _add(self, round_: int, name: str, cell: Cell, figures: Figures) -> None:
        self._run.add(round_, name, cell, figures)
        self._done += 1
        going = [name for name in self._servers if not self._run.has_failed(name)]
        in_round = len(self._workloads) + 1 + len(going) * len(self._choices.cells)
        total = max(self._done, self._choices.rounds * in_round)
        self._observer.on_progress(self._done, total)
        self._save(self._run)

    def _measure(self, name: str, started: StartedServer, cell: Cell) -> Figures:
        call, load, workload = self._servers[name].call, self._choices.load, cell.workload
        url, differences = started.running.predict_url, started.differences
        warm_up_s = load.warm_up_s
        if workload in differences:
            warm_up_s = min(warm_up_s, TURN_WARM_UP_S)
        else:
            differences[workload] = check_replies(name, url, call, self._checks[workload])
        window = load.for_window(
            url,
            self._workloads[workload].paths,
            cell.clients,
            more_paths=call.more_paths,
            headers=call.all_headers,
            warm_up_s=warm_up_s,
            rate=cell.rate or None,
        )
        watcher = WindowWatcher(name, started.running, self._observer)
        return {
            **measure_load(watcher, window),
            "answer_difference": round(differences[workload], 5),
        }


def run_compare(choices: Choices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs the comparison; see `Comparison` for arguments and errors.

    What was built is kept where something failed.
    """
    run = Run(NAME, choices.command, choices.settings)
    with work_folder(lambda: bool(run.failures)) as folder:
        Comparison(choices, run, observer, save, folder).take_rounds()
    return run
