"""What the JVM's collector and TorchServe's own buffers cost: the tables in docs/jvm.md.

Our near-free archive and handler under each variant of config.properties, in interleaved rounds.
Each variant starts afresh in each round, or all run side by side and take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.core.saved import Saved
from offpath.profiling.core.summary import percentile
from offpath.profiling.experiments.jvm_variants import Variant
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.plan import Generator, LoadPlan, find_generator
from offpath.profiling.load.sampling import sample_cpu_s, sample_rss_bytes
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.torchserve import (
    RunningTorchServe,
    TorchServeUnderTest,
    make_offpath,
)

WORKLOADS = ("photos-1200k", "photos-55k")
CLIENTS = 32
# Java compiles its hot path within seconds at hundreds of requests a second, not at ten.
WARM_UP_S = 8.0
# One client after the many: what a lone request takes.
LONE_WARM_UP_S = 1.0
LONE_SECONDS = 3.0
# Side by side each server is warmed up once, and idle threads wake up before each turn.
LONG_WARM_UP_S = 12.0
SHORT_WARM_UP_S = 1.0
JAVA, WORKERS = "frontend", "workers"
COLUMNS = (
    *("req/s", "p50 ms", "p99 ms", "1 client p50 ms"),
    # The last is of the same window: cores that change their speed leave it as it is.
    *("Java ms/req", "workers ms/req", "Java / workers"),
    *("Java RSS MB", "failed"),
)


@dataclass(frozen=True)
class JvmChoices:
    """What the user asked for; see `offpath bench jvm --help`."""

    variants: Mapping[str, Variant]
    rounds: int
    seconds: float
    generator: str
    side_by_side: bool
    command: str


@dataclass(frozen=True)
class VariantMeasurement:
    """One variant on one workload in one round; `figures` by COLUMNS."""

    round: int
    variant: str
    workload: str
    figures: dict[str, float]


@dataclass
class JvmResult:
    """A run.

    Attributes:
        variants: the keys of config.properties that each one changes.
        left_out: why a variant has no more rounds.
    """

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    variants: dict[str, dict[str, str]]
    measurements: list[VariantMeasurement] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


JVM = Saved("offpath-jvm/1", JvmResult, "bench jvm")


class CpuCost:
    """Samples the server's CPU time when the window begins and when it has ended."""

    def __init__(self, server: RunningTorchServe) -> None:
        groups = server.groups()
        self._groups = {name: groups[name] for name in (JAVA, WORKERS)}
        self._before: dict[str, float] = {}

    def on_window(self) -> None:
        self._before = sample_cpu_s(self._groups)

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Nothing: the differences tell."""

    def cpu_ms(self, replies: int) -> dict[str, float]:
        """Of a reply, by group."""
        now = sample_cpu_s(self._groups)
        return {
            name: (now[name] - self._before[name]) * 1e3 / replies
            for name in self._groups
        }

    def rss_mb(self) -> float:
        """Java's."""
        return sample_rss_bytes({JAVA: self._groups[JAVA]})[JAVA] / 2**20


def make_plan(
    server: RunningTorchServe, workload: str, warm_up_s: float, seconds: float
) -> LoadPlan:
    """CLIENTS closed-loop clients."""
    return LoadPlan(
        url=server.predict_url,
        paths=load_workload(workload).paths,
        clients=CLIENTS,
        warm_up_s=warm_up_s,
        seconds=seconds,
    )


def measure(
    server: RunningTorchServe, workload: str, plan: LoadPlan, generator: Generator
) -> dict[str, float]:
    """One workload under many clients, then under one; figures by COLUMNS.

    Raises:
        ExpectedError: no reply was a 200.
    """
    cost = CpuCost(server)
    sample = generator.run(plan, cost)
    if not sample.ok:
        raise ExpectedError(f"{workload}: no reply was 200: {sample.statuses}")
    cpu_ms, rss_mb = cost.cpu_ms(sample.ok), cost.rss_mb()
    plan = replace(plan, clients=1, warm_up_s=LONE_WARM_UP_S, seconds=LONE_SECONDS)
    lone = generator.run(plan, CpuCost(server))
    figures = (
        sample.ok / sample.elapsed_s,
        percentile(sample.latencies_ms, 50),
        percentile(sample.latencies_ms, 99),
        percentile(lone.latencies_ms, 50),
        *(cpu_ms[JAVA], cpu_ms[WORKERS], cpu_ms[JAVA] / cpu_ms[WORKERS]),
        *(rss_mb, float(sample.failures)),
    )
    return dict(zip(COLUMNS, figures))


class Session:
    """One run: measures variants, keeps what was seen, leaves out what fails."""

    def __init__(
        self,
        choices: JvmChoices,
        report: Callable[[str], None],
        save: Callable[[JvmResult], None],
    ) -> None:
        self._choices, self._report, self._save = choices, report, save
        self._load = find_generator(choices.generator)
        self._load.check(choices.seconds, None)
        self.result = JvmResult(
            choices.command,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            describe_host(),
            {
                "rounds": choices.rounds,
                "seconds": choices.seconds,
                "generator": choices.generator,
                "side_by_side": choices.side_by_side,
            },
            {name: dict(v.overrides) for name, v in choices.variants.items()},
        )

    def run_afresh(self, offpath: TorchServeUnderTest) -> None:
        """Each variant starts in each round, and is alone on the machine."""
        for round_ in range(self._choices.rounds):
            for name, variant in self._choices.variants.items():
                if name in self.result.left_out:
                    continue
                with self._leaving_out(name):
                    server = replace(offpath, overrides=variant.overrides)
                    with variant.chosen_java(), server.running() as running:
                        self._measure(round_, name, running, WARM_UP_S)

    def run_side_by_side(self, offpath: TorchServeUnderTest) -> None:
        """All variants start once and take turns; the others are idle meanwhile."""
        with ExitStack() as stack:
            servers = {}
            for name, variant in self._choices.variants.items():
                with self._leaving_out(name), variant.chosen_java():
                    server = replace(offpath, overrides=variant.overrides)
                    servers[name] = stack.enter_context(server.running())
            for name, running in servers.items():
                with self._leaving_out(name):
                    self._report(f"{name}: warm up")
                    for workload in WORKLOADS:
                        plan = make_plan(running, workload, LONG_WARM_UP_S, 1.0)
                        self._load.run(plan, CpuCost(running))
            for round_ in range(self._choices.rounds):
                # There and back: who comes first after an idle moment changes.
                for name in list(servers)[:: 1 if round_ % 2 == 0 else -1]:
                    with self._leaving_out(name):
                        self._measure(round_, name, servers[name], SHORT_WARM_UP_S)

    def _measure(
        self, round_: int, name: str, running: RunningTorchServe, warm_up_s: float
    ) -> None:
        if name in self.result.left_out:
            return
        for workload in WORKLOADS:
            plan = make_plan(running, workload, warm_up_s, self._choices.seconds)
            figures = measure(running, workload, plan, self._load)
            self.result.measurements.append(
                VariantMeasurement(round_, name, workload, figures)
            )
            self._report(f"{name}, {workload}: {figures['req/s']:.1f} req/s")

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        try:
            yield
        except ExpectedError as error:
            self.result.left_out[name] = str(error)
            self._report(f"{name} is left out: {error}")
        self._save(self.result)


def measure_variants(
    choices: JvmChoices,
    report: Callable[[str], None],
    save: Callable[[JvmResult], None],
) -> JvmResult:
    """Runs interleaved rounds; a variant that fails is left out of those that follow.

    Args:
        choices: what the user asked for.
        report: told each figure as it comes.
        save: called with everything so far, after each variant.

    Raises:
        ExpectedError: the archive cannot be built, or there is no such generator.
    """
    session = Session(choices, report, save)
    offpath = make_offpath(load_model("near-free"), count_cores())
    with tempfile.TemporaryDirectory() as folder:
        offpath.prepare(Path(folder) / "store")
        if choices.side_by_side:
            session.run_side_by_side(offpath)
        else:
            session.run_afresh(offpath)
    return session.result
