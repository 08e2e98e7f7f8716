"""A front door under load: injects a fault, waits for recovery and counts the losses."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from offpath.profiling.servers import archives
from offpath.serving.prediction_log.reading import compare
from tests.fuzz.costly_requests import SIDE
from tests.reliability.logged_server import LogTrial
from tests.support.costly import progressive_jpeg
from tests.support.eventually import eventually
from tests.support.front import BODIES, FRONTS, FrontProcess, Reply, Seen, load

STAGE_S = float(os.environ.get("OFFPATH_FAULT_STAGE_S", "4"))
CLIENTS = 4
# A request that takes a worker about a second, so that it is in flight when a fault strikes.
SLOW = progressive_jpeg(SIDE, 3)
SLOW_CLIENTS = 3
# A file of this size fills the small disks that are mounted for a test.
SMALL = {"spool": "4m", "logs": "4m", "tmp": "64m", "memory": "640m"}
DROPPED = re.compile(r"^offpath_log_dropped_total\{.*\} (\S+)$", re.MULTILINE)
# The workers report their counters every second, after a batch.
COUNTERS_S = 1.5


@dataclass
class Stage:
    """A fault and its consequences.

    Attributes:
        in_flight: statuses of the slow requests that were in flight when the fault struck.
        given_up: records that the log counted as dropped.
    """

    name: str
    seen: Seen = field(default_factory=Seen)
    in_flight: Seen = field(default_factory=Seen)
    recovery_s: float = 0.0
    given_up: int = 0

    @property
    def answered(self) -> set[str]:
        return {*self.seen.answered, *self.in_flight.answered}

    @property
    def is_noticed(self) -> bool:
        """Returns whether any request was answered with something other than 200, or not at all."""
        both = (self.seen, self.in_flight)
        return any(set(one.statuses) != {200} for one in both) or any(
            one.broken or one.refused for one in both
        )


@dataclass
class Bench:
    """A front door whose log goes to S3 through a proxy, and its small disks.

    Attributes:
        product: the server behind the door, `torchserve` or `granian`.
    """

    door: FrontProcess
    trial: LogTrial
    folder: Path
    product: str
    stages: list[Stage] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.door.url}/predictions/{archives.NAME}"

    def count_given_up(self) -> int:
        """Counts the records that the workers reported as dropped."""
        text = httpx.get(self.door.metrics_url, trust_env=False).text
        return int(sum(float(number) for number in DROPPED.findall(text)))

    def judge(self) -> tuple[dict[str, int], list[str]]:
        """Prints the table; returns each stage's lost records, beyond the policy's, and doubles."""
        counts = self.trial.bucket.event_counts()
        lost = {}
        print(
            f"\n{self.product}\n| fault | 200 | other | refused | broken | in flight: 200, other |"
            " well again s | no record | given up |\n" + "|---" * 9 + "|"
        )
        for stage in self.stages:
            seen, slow = stage.seen, stage.in_flight
            missing = len(compare(counts.elements(), stage.answered).missing)
            if missing != stage.given_up:
                lost[stage.name] = missing - stage.given_up
            print(
                f"| {stage.name} | {seen.statuses[200]} | {_others(seen)} |"
                f" {seen.refused} | {sum(seen.broken.values())} |"
                f" {slow.statuses[200]}, {_others(slow) + sum(slow.broken.values())} |"
                f" {stage.recovery_s:.1f} | {missing} | {stage.given_up} |"
            )
        double = [event_id for event_id, times in counts.items() if times > 1]
        asked = sum(len(stage.answered) for stage in self.stages)
        print(f"{asked:,} answered; {sum(lost.values())} lost, {len(double)} double")
        return lost, double


def _others(seen: Seen) -> int:
    return sum(n for status, n in seen.statuses.items() if status != 200)


@contextmanager
def open_bench(trial: LogTrial, folder: Path, product: str, **environ: str) -> Iterator[Bench]:
    """Opens a bench whose spool, logs, /tmp and bodies lie on separate, partly small disks."""
    env = {
        **trial.s3.environ,
        "OFFPATH_SPOOL_DIR": str(trial.spool),
        "TMPDIR": str(folder / "tmp"),
        **environ,
    }
    options = [archives.NAME, "--front-memory", str(folder / "memory")]
    run, store = FRONTS[product], trial.archive.parent
    with small_disks(folder, SMALL):
        with run(store, folder / "logs", *options, **env) as door:
            yield Bench(door, trial, folder, product)


@contextmanager
def small_disks(folder: Path, sizes: Mapping[str, str]) -> Iterator[None]:
    mounted: list[Path] = []
    try:
        for name, size in sizes.items():
            disk = folder / name
            disk.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
            if subprocess.run(command, capture_output=True).returncode != 0:
                pytest.skip("mounting a small disk is not permitted here")
            mounted.append(disk)
        yield
    finally:
        for disk in mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def _in_flight(url: str) -> Iterator[Seen]:
    """Keeps one slow request per client in flight during the block."""
    seen = Seen()

    def post() -> None:
        began_s = time.monotonic()
        try:
            answer = httpx.post(url, content=SLOW, trust_env=False, timeout=60)
        except httpx.HTTPError as error:
            seen.broken[f"{type(error).__name__}: {error}"] += 1
            return
        request_id, took_s = answer.headers.get("x-request-id", ""), time.monotonic() - began_s
        seen.replies.append(Reply(answer.status_code, request_id, began_s, took_s))

    with ThreadPoolExecutor(SLOW_CLIENTS) as pool:
        for _ in range(SLOW_CLIENTS):
            pool.submit(post)
        time.sleep(0.4)
        yield seen


def run_stage(
    bench: Bench, name: str, strike: Callable[[Bench], None], is_kill: bool = False
) -> Stage:
    """Injects the fault while batches are in flight and waits for recovery."""
    workers = len(bench.door.python_workers())
    given_up = bench.count_given_up()
    stage = Stage(name)
    print(f"\n{bench.product}, {name}", end="", flush=True)
    bench.stages.append(stage)
    with load(bench.url, BODIES, clients=CLIENTS, pause_s=0.05) as stage.seen:
        time.sleep(0.5)
        with _in_flight(bench.url) as stage.in_flight:
            start_s = time.monotonic()
            strike(bench)
            if is_kill:
                # Earlier, a supervisor may not have noticed the end of a process.
                time.sleep(1.0)
            else:
                start_s = time.monotonic()
            eventually(
                lambda: bench.door.is_healthy() and len(bench.door.python_workers()) == workers
            )
        before = stage.seen.statuses[200]
        eventually(lambda: stage.seen.statuses[200] > before + 8)
        stage.recovery_s = time.monotonic() - start_s
        # Late consequences of this fault must not count for the next one.
        time.sleep(COUNTERS_S)
    # A killed worker's successor counts from 0.
    stage.given_up = max(0, bench.count_given_up() - given_up)
    return stage
