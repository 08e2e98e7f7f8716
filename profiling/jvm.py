"""What the JVM's collector and TorchServe's own buffers cost: the table in docs/jvm.md.

Our near-free archive and handler under each variant of config.properties, 32 clients; each
variant starts afresh in each round, and rounds are interleaved.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from offpath.errors import ExpectedError
from profiling.host import count_cores
from profiling.load import LoadPlan, find_generator
from profiling.model_under_test import load_model
from profiling.sampling import sample_cpu_s, sample_rss_bytes
from profiling.servers.torchserve import RunningTorchServe, make_offpath
from profiling.workload import load_workload

VARIANTS = {
    "default (G1)": {"vmargs": ""},
    "G1, 16 MB regions, 1 GB": {
        "vmargs": "-Xms1g -Xmx1g -XX:+UseG1GC -XX:G1HeapRegionSize=16m"
    },
    "Parallel, 1 GB": {"vmargs": "-Xms1g -Xmx1g -XX:+UseParallelGC"},
    "Parallel, 2 GB": {"vmargs": "-Xms2g -Xmx2g -XX:+UseParallelGC"},
    "Serial, 1 GB": {"vmargs": "-Xms1g -Xmx1g -XX:+UseSerialGC"},
    "Serial, up to 1 GB": {"vmargs": "-Xmx1g -XX:+UseSerialGC"},
    "Parallel, 1 GB, direct buffers": {
        "vmargs": "-Xms1g -Xmx1g -XX:+UseParallelGC",
        "prefer_direct_buffer": "true",
    },
    "Parallel, 1 GB, one netty thread a core": {
        "vmargs": "-Xms1g -Xmx1g -XX:+UseParallelGC",
        "number_of_netty_threads": str(count_cores()),
        "netty_client_threads": str(count_cores()),
    },
}
WORKLOADS = ("photos-1200k", "photos-55k")
CLIENTS = 32
# Java compiles its hot path within seconds at hundreds of requests a second, not at ten.
WARM_UP_S = 8.0


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
    server: RunningTorchServe, workload: str, generator: str, seconds: float
) -> dict[str, float]:
    plan = LoadPlan(
        url=server.predict_url,
        paths=load_workload(workload).paths,
        clients=CLIENTS,
        warm_up_s=WARM_UP_S,
        seconds=seconds,
    )
    cost = JavaCost(server)
    sample = find_generator(generator).run(plan, cost)
    if sample.failures or not sample.ok:
        raise ExpectedError(f"{workload}: not all were 200: {sample.statuses}")
    return {
        "req/s": sample.ok / sample.elapsed_s,
        "p50 ms": statistics.median(sample.latencies_ms),
        "p99 ms": statistics.quantiles(sample.latencies_ms, n=100)[98],
        "Java ms/req": cost.cpu_s() * 1e3 / sample.ok,
        "Java RSS MB": cost.rss_mb(),
    }


Results = dict[tuple[str, str], list[dict[str, float]]]


def measure_variants(
    variants: Sequence[str],
    rounds: int,
    seconds: float,
    generator: str,
    report: Callable[[str], None],
) -> Results:
    """Runs interleaved rounds.

    Args:
        variants: names from VARIANTS.
        rounds: of all variants.
        seconds: length of a window.
        generator: a load generator's name.
        report: told each figure as it comes.

    Returns:
        (variant, workload) -> figures by column, a dict per round.

    Raises:
        ExpectedError: a server does not start, or a reply is not a 200.
    """
    results: Results = defaultdict(list)
    offpath = make_offpath(load_model("near-free"), count_cores())
    with tempfile.TemporaryDirectory() as folder:
        offpath.prepare(Path(folder) / "store")
        for _ in range(rounds):
            for variant in variants:
                with replace(offpath, overrides=VARIANTS[variant]).running() as server:
                    for workload in WORKLOADS:
                        figures = measure(server, workload, generator, seconds)
                        results[variant, workload].append(figures)
                        report(f"{variant}, {workload}: {figures['req/s']:.1f} req/s")
    return results


def format_table(results: Results, variants: Sequence[str]) -> str:
    """Means over the rounds, as Markdown; ratios to the first variant."""
    columns = ["req/s", "p50 ms", "p99 ms", "Java ms/req", "Java RSS MB"]
    lines = []
    for workload in WORKLOADS:
        lines += [f"\n| {workload} | ratio | {' | '.join(columns)} |"]
        lines += ["|---" * (len(columns) + 2) + "|"]
        first = None
        for variant in variants:
            rounds = results[variant, workload]
            means = [statistics.mean(r[column] for r in rounds) for column in columns]
            first = first or means[0]
            cells = " | ".join(f"{mean:.1f}" for mean in means)
            lines.append(f"| {variant} | {means[0] / first:.2f} | {cells} |")
    return "\n".join(lines)
