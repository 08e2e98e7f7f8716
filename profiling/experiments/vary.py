"""`bench sweep --vary`: batch delay, batch size, workers, threads, each turned from the preset's.

One TorchServe serves all of it over the register API; each setting gets fresh workers and meets
each number of clients in turn. Rounds are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.host import count_cores
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.runner import Schedule
from offpath.profiling.experiments.on_servers import (
    START_S,
    TURN_WARM_UP_S,
    Windows,
    open_bench,
)
from offpath.profiling.experiments.server_subject import ServerSubject
from offpath.profiling.experiments.sweep import NAME
from offpath.profiling.experiments.sweep_report import REFERENCE, VARIED, turn_knob
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import name_model
from offpath.profiling.load.window import measure_load
from offpath.profiling.servers.registered_archive import prepare_archive
from offpath.profiling.servers.registering import (
    RegisteringServer,
    Setting,
    read_setting,
)
from offpath.profiling.servers.torchserve import RunningTorchServe


@dataclass(frozen=True)
class VaryChoices:
    """What the user asked for.

    Attributes:
        knobs: attribute of `Setting` -> its values.
        windows: its warm-up is of the server, before the first setting: Java compiles meanwhile.
    """

    model: str
    preset: str | None
    workload: str
    knobs: Mapping[str, tuple[int, ...]]
    clients: tuple[int, ...]
    rounds: int
    windows: Windows
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be put together."""
        return {
            "model": name_model(self.model),
            "preset": self.preset,
            "clients": list(self.clients),
            VARIED: {knob: list(values) for knob, values in self.knobs.items()},
            **asdict(self.windows),
        }

    @property
    def estimated_s(self) -> float:
        """How long it takes, roughly; the archive's build comes on top."""
        settings = 1 + sum(len(values) for values in self.knobs.values())
        window_s = TURN_WARM_UP_S + (self.windows.seconds or 0.0)
        one_s = START_S + len(self.clients) * window_s
        return self.windows.warm_up_s + self.rounds * settings * one_s


@dataclass
class RegisteredServer:
    """One setting as a `ServerUnderTest`: registered, not started."""

    name: str
    setting: Setting
    registering: RegisteringServer
    call: Call = field(default_factory=Call)
    batch_size: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return asdict(self.setting)

    def why_not(self) -> str | None:
        """It can: the server runs already."""
        return None

    def prepare(self, folder: Path) -> None:
        """Nothing to build."""

    @contextmanager
    def running(self) -> Iterator[RunningTorchServe]:
        """See `ServerUnderTest`."""
        with self.registering.serving(self.setting) as (running, _):
            yield running


def run_vary(
    choices: VaryChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it.

    Args:
        save: see `Bench`.

    Raises:
        ExpectedError: wrong choices, or a server that dies.
    """
    run, cores = Run(NAME, choices.command, choices.settings), count_cores()
    windows = replace(choices.windows, warm_up_s=TURN_WARM_UP_S)
    with open_bench(
        run, choices.model, (choices.workload,), windows, observer, save
    ) as bench:
        observer.on_step("build the archive")
        store = bench.folder / "store"
        archive = prepare_archive(choices.model, None, choices.preset, store)
        reference = read_setting(archive.preset, cores, archive.has_our_handler)
        run.settings[REFERENCE] = asdict(reference)
        turned = [
            turn_knob(asdict(reference), knob, value, cores)
            for knob, values in choices.knobs.items()
            for value in values
        ]
        settings = [reference, *(Setting(**one) for one in turned)]
        cells = [Cell(choices.workload, clients) for clients in choices.clients]
        with RegisteringServer(archive) as registering:
            subjects = [
                ServerSubject(
                    str(one), RegisteredServer(str(one), one, registering), bench
                )
                for one in dict.fromkeys(settings)
            ]
            observer.on_step("warm up the server")
            warm_up(subjects[0], cells[-1], choices.windows.warm_up_s)
            bench.measure(subjects, cells, Schedule(choices.rounds))
    return run


def warm_up(subject: ServerSubject, cell: Cell, seconds: float) -> None:
    """Load that is thrown away."""
    bench = subject.bench
    with subject.server.running() as running:
        plan = bench.make_plan(subject.server, running.predict_url, cell, 0.0)
        plan = replace(plan, seconds=seconds, min_replies=0)
        if seconds:
            measure_load(subject.name, running, plan, bench.generator, bench.observer)
