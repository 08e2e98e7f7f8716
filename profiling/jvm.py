"""What the JVM's collector and TorchServe's own buffers cost: the tables in docs/jvm.md.

Our near-free archive and handler under each variant of config.properties; each variant starts
afresh in each round, and rounds are interleaved.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.host import count_cores, describe_host
from profiling.jvm_variants import Variant
from profiling.load import Generator, LoadPlan, find_generator
from profiling.model_under_test import load_model
from profiling.sampling import sample_cpu_s, sample_rss_bytes
from profiling.servers.torchserve import RunningTorchServe, make_offpath
from profiling.summary import percentile
from profiling.workload import load_workload

FORMAT = "offpath-jvm/1"
WORKLOADS = ("photos-1200k", "photos-55k")
CLIENTS = 32
# Java compiles its hot path within seconds at hundreds of requests a second, not at ten.
WARM_UP_S = 8.0
# One client after the many: what a lone request takes.
LONE_WARM_UP_S = 1.0
LONE_SECONDS = 3.0
COLUMNS = (
    *("req/s", "p50 ms", "p99 ms", "1 client p50 ms"),
    *("Java ms/req", "Java RSS MB", "failed"),
)


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


class JavaCost:
    """Samples Java's CPU time when the window begins and when it has ended."""

    def __init__(self, server: RunningTorchServe) -> None:
        self._groups = {"frontend": server.groups()["frontend"]}
        self._before = 0.0

    def on_window(self) -> None:
        self._before = sample_cpu_s(self._groups)["frontend"]

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Nothing: the differences tell."""

    def cpu_s(self) -> float:
        return sample_cpu_s(self._groups)["frontend"] - self._before

    def rss_mb(self) -> float:
        return sample_rss_bytes(self._groups)["frontend"] / 2**20


def measure(
    server: RunningTorchServe, workload: str, generator: Generator, seconds: float
) -> dict[str, float]:
    """One workload under many clients, then under one; figures by COLUMNS.

    Raises:
        ExpectedError: no reply was a 200.
    """
    plan = LoadPlan(
        url=server.predict_url,
        paths=load_workload(workload).paths,
        clients=CLIENTS,
        warm_up_s=WARM_UP_S,
        seconds=seconds,
    )
    cost = JavaCost(server)
    sample = generator.run(plan, cost)
    if not sample.ok:
        raise ExpectedError(f"{workload}: no reply was 200: {sample.statuses}")
    java_ms, rss_mb = cost.cpu_s() * 1e3 / sample.ok, cost.rss_mb()
    plan = replace(plan, clients=1, warm_up_s=LONE_WARM_UP_S, seconds=LONE_SECONDS)
    lone = generator.run(plan, JavaCost(server))
    figures = (
        sample.ok / sample.elapsed_s,
        percentile(sample.latencies_ms, 50),
        percentile(sample.latencies_ms, 99),
        percentile(lone.latencies_ms, 50),
        *(java_ms, rss_mb, float(sample.failures)),
    )
    return dict(zip(COLUMNS, figures))


def measure_variants(
    variants: Mapping[str, Variant],
    rounds: int,
    seconds: float,
    generator: str,
    command: str,
    report: Callable[[str], None],
    save: Callable[[JvmResult], None],
) -> JvmResult:
    """Runs interleaved rounds; a variant that fails is left out of those that follow.

    Args:
        variants: from `profiling.jvm_variants`.
        rounds: of all variants.
        seconds: length of a window.
        generator: a load generator's name.
        report: told each figure as it comes.
        save: called with everything so far, after each variant.

    Raises:
        ExpectedError: the archive cannot be built, or there is no such generator.
    """
    result = JvmResult(
        command,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
        {"rounds": rounds, "seconds": seconds, "generator": generator},
        {name: dict(variant.overrides) for name, variant in variants.items()},
    )
    load = find_generator(generator)
    load.check(seconds, None)
    offpath = make_offpath(load_model("near-free"), count_cores())
    with tempfile.TemporaryDirectory() as folder:
        offpath.prepare(Path(folder) / "store")
        for round_ in range(rounds):
            for name, variant in variants.items():
                if name in result.left_out:
                    continue
                server = replace(offpath, overrides=variant.overrides)
                try:
                    with variant.chosen_java(), server.running() as running:
                        for workload in WORKLOADS:
                            figures = measure(running, workload, load, seconds)
                            result.measurements.append(
                                VariantMeasurement(round_, name, workload, figures)
                            )
                            report(f"{name}, {workload}: {figures['req/s']:.1f} req/s")
                except ExpectedError as error:
                    result.left_out[name] = str(error)
                    report(f"{name} is left out: {error}")
                save(result)
    return result


def format_table(result: JvmResult) -> str:
    """Medians of the rounds, as Markdown; ratios to the first variant."""
    lines = []
    for workload in WORKLOADS:
        lines += [f"\n| {workload} | ratio | range | {' | '.join(COLUMNS)} |"]
        lines += ["|---" * (len(COLUMNS) + 3) + "|"]
        first = None
        for name in result.variants:
            rounds = select(result, name, workload)
            if not rounds:
                continue
            medians = [
                statistics.median(r[column] for r in rounds) for column in COLUMNS
            ]
            first = first or medians[0]
            rates = [r["req/s"] for r in rounds]
            spread = f"{min(rates):.0f}-{max(rates):.0f}"
            cells = " | ".join(f"{value:.1f}" for value in medians[:-1])
            lines.append(
                f"| {name} | {medians[0] / first:.2f} | {spread} | {cells} |"
                f" {medians[-1]:.0f} |"
            )
    return "\n".join(lines)


def select(
    result: JvmResult, variant: str, workload: str
) -> Sequence[Mapping[str, float]]:
    """The rounds of one variant."""
    return [
        m.figures
        for m in result.measurements
        if m.variant == variant and m.workload == workload
    ]
