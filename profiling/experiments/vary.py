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
from offpath.profiling.core.run import Run
from offpath.profiling.experiments.on_servers import Choices, open_bench
from offpath.profiling.experiments.server_subject import ServerSubject
from offpath.profiling.experiments.sweep import NAME
from offpath.profiling.experiments.sweep_report import REFERENCE, VARIED, turn_knob
from offpath.profiling.load.call import Call
from offpath.profiling.load.window import measure_load
from offpath.profiling.servers.registered_archive import prepare_archive
from offpath.profiling.servers.registering import (
    RegisteringServer,
    Setting,
    read_setting,
)
from offpath.profiling.servers.torchserve import RunningTorchServe


@dataclass(frozen=True)
class VaryChoices(Choices):
    """See `offpath bench sweep --help`.

    Attributes:
        knobs: attribute of `Setting` -> its values.
        settle_s: load before the first setting, thrown away: Java compiles meanwhile.
    """

    knobs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    preset: str | None = None
    settle_s: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """See `Choices`."""
        varied = {knob: list(values) for knob, values in self.knobs.items()}
        own = {VARIED: varied, "preset": self.preset, "settle_s": self.settle_s}
        return {**super().settings, **own}

    @property
    def estimated_s(self) -> float:
        """Of one setting, times as many as there are."""
        settings = 1 + sum(len(values) for values in self.knobs.values())
        return self.settle_s + settings * super().estimated_s


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
    """Runs it; arguments and errors: see `open_bench` and `RegisteringServer`."""
    cores = count_cores()
    with open_bench(NAME, choices, observer, save) as bench:
        observer.on_step("build the archive")
        store = bench.folder / "store"
        archive = prepare_archive(choices.model, None, choices.preset, store)
        reference = read_setting(archive.preset, cores, archive.has_our_handler)
        bench.run.settings[REFERENCE] = asdict(reference)
        turned = [
            turn_knob(asdict(reference), knob, value, cores)
            for knob, values in choices.knobs.items()
            for value in values
        ]
        settings = [reference, *(Setting(**one) for one in turned)]
        with RegisteringServer(archive) as registering:
            subjects = [
                ServerSubject(
                    str(one), RegisteredServer(str(one), one, registering), bench
                )
                for one in dict.fromkeys(settings)
            ]
            if choices.settle_s:
                settle(subjects[0], choices)
            return bench.measure(subjects)


def settle(subject: ServerSubject, choices: VaryChoices) -> None:
    """Load that is thrown away."""
    bench, server = subject.bench, subject.server
    bench.observer.on_step("warm up the server")
    with server.running() as running:
        plan = bench.make_plan(server, running.predict_url, choices.cells[-1], 0.0)
        plan = replace(plan, seconds=choices.settle_s, min_replies=0)
        measure_load(subject.name, running, plan, bench.generator, bench.observer)
