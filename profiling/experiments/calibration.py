"""Checks load generators against servers whose answers are known.

Those that a benchmark offers must be right; the other candidates are measured beside them.

instant: a server that answers at once; the rate that the generator reaches and what it costs.
delay: known delays and failures; its percentiles and counts against the server's own.
stall: a server that stands still once; closed loop hides it, open loop shows it.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import describe_host
from offpath.profiling.core.saved import Saved
from offpath.profiling.core.summary import percentile
from offpath.profiling.load.known_server import Behaviour, run_known_server
from offpath.profiling.load.plan import LoadPlan, find_generator

# What `--generator` of a benchmark offers, and candidates that are told beside them.
CHOICES = ("locust", "wrk")
GENERATORS = (*CHOICES, "perf_analyzer", "loadgen")
BODY_BYTES = {"photos-1200k": 1_200_000, "photos-55k": 55_000, "npy": 150_656}
INSTANT_CLIENTS = 32
PERCENTS = (50, 95, 99)
MOST_ERROR = 0.02
# Varied, so that the clients do not march in step and queue for the generator's one thread.
DELAYS_S = tuple(0.2 + 0.01 * (7 * step % 16) for step in range(16))
DELAY_REQUESTS = 640
FAIL_DELAY_S = 0.1
FAIL_EVERY = 10
# Between two failures: the clients that are still waiting at the end cannot hide one.
FAIL_REQUESTS = 205
STALL_S = 2.0
STALL_DELAY_S = 0.01
STALL_RATE = 50.0
STALL_SECONDS = 10.0
STALL_CLIENTS = 4
DELAY_CLIENTS = 8
# Both loops leave the cores nearly idle: what is checked is the clock, not the machine. The open
# one has connections to spare: nothing waits for one.
OPEN_CLIENTS, OPEN_RATE = 64, 30.0
# The fastest server of a table must stay this far below the generator's own rate.
HEAD_ROOM = 5.0


@dataclass(frozen=True)
class Instant:
    """One generator against a server that answers at once."""

    generator: str
    workload: str
    rate: float
    cpu_ms: float


@dataclass(frozen=True)
class Delay:
    """Percentiles and counts against the server's own.

    Attributes:
        loop: closed or open.
        failures: None where the first failed reply ends the generator.
    """

    generator: str
    loop: str
    sent_ms: dict[str, float]
    held_ms: dict[str, float]
    failures: int | None
    expected_failures: int

    @property
    def error(self) -> float:
        """Largest relative difference of a percentile."""
        return max(
            abs(self.sent_ms[name] / held - 1) for name, held in self.held_ms.items()
        )


@dataclass
class Calibration:
    """A run; `problems` is empty when CHOICES can be trusted, `without` says who is missing."""

    command: str
    started_at: str
    host: dict[str, Any]
    instant: list[Instant] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    stall_p99_ms: dict[str, float] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


CALIBRATION = Saved("offpath-calibration/2", Calibration, "bench calibrate")


class Unwatched:
    """Nobody looks on while the load runs."""

    def on_window(self) -> None:
        """See `profiling.load.Watcher`."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """See `profiling.load.Watcher`."""


def calibrate(
    command: str,
    seconds: float,
    fastest: dict[str, float],
    say: Callable[[str], None],
    generators: Sequence[str] = GENERATORS,
) -> Calibration:
    """Runs all checks.

    Args:
        seconds: length of the windows against the instant server.
        fastest: workload -> highest rate of the tables that the generator must stand above.
    """
    result = Calibration(
        command,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
    )
    with tempfile.TemporaryDirectory(prefix="offpath-calibrate-") as name:
        for generator in generators:
            try:
                check_generator(result, generator, Path(name), seconds, say)
            except ExpectedError as error:
                result.without[generator] = str(error)
                say(f"without {generator}: {error}")
        path = write_body(Path(name), BODY_BYTES["photos-55k"])
        for loop in ("closed", "open"):
            say(f"{loop} loop: a server that stalls")
            result.stall_p99_ms[loop] = measure_stall_p99_ms(loop, path)
    result.problems = find_problems(result, fastest)
    return result


def check_generator(
    result: Calibration,
    generator: str,
    folder: Path,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """All checks of one generator but the stall.

    Raises:
        ExpectedError: it is not installed, or ended with an error.
    """
    # Closed loop for some seconds: all of them know that.
    find_generator(generator).check(1.0, None)
    for workload, size in BODY_BYTES.items():
        say(f"{generator}: {workload}, a server that answers at once")
        path = write_body(folder, size)
        result.instant.append(measure_instant(generator, workload, path, seconds))
    path = write_body(folder, BODY_BYTES["photos-55k"])
    for loop in ("closed", "open"):
        if knows(generator, loop):
            say(f"{generator}: {loop} loop, known delays and failures")
            result.delays.append(measure_delay(generator, loop, path))
    # LoadGen's Offline scenario, its closed loop, times the queue and not a request.
    result.delays = [d for d in result.delays if not math.isnan(d.sent_ms["p50"])]


def write_body(folder: Path, size: int) -> Path:
    """A file of so many bytes."""
    path = folder / str(size)
    path.write_bytes(b"x" * size)
    return path


def measure_instant(
    generator: str, workload: str, path: Path, seconds: float
) -> Instant:
    """Rate and CPU of the generator."""
    with run_known_server() as server:
        plan = LoadPlan(server.url, (path,), INSTANT_CLIENTS, 1.0, seconds)
        sample = find_generator(generator).run(plan, Unwatched())
    replies = max(1, sum(sample.statuses.values()))
    return Instant(
        generator,
        workload,
        round(sample.ok / sample.elapsed_s, 1),
        round(1000 * sample.cpu_s / replies, 4),
    )


def measure_delay(
    generator: str, loop: str, path: Path, requests: int = DELAY_REQUESTS
) -> Delay:
    """Known delays, which the server measures itself."""
    with run_known_server(Behaviour(DELAYS_S)) as server:
        plan = make_plan(generator, loop, server.url, path, requests, DELAYS_S)
        sample = find_generator(generator).run(plan, Unwatched())
        counts = server.counts()
    names = {f"p{percent}": percent for percent in PERCENTS}
    failures, expected = measure_failures(generator, loop, path)
    return Delay(
        generator,
        loop,
        {n: percentile(sample.latencies_ms, percent) for n, percent in names.items()},
        {n: percentile(counts.held_ms, percent) for n, percent in names.items()},
        failures,
        expected,
    )


def measure_failures(generator: str, loop: str, path: Path) -> tuple[int | None, int]:
    """Failures that the generator counted (None: it ended at one), and how many there were."""
    delays_s = (FAIL_DELAY_S,)
    with run_known_server(Behaviour(delays_s, FAIL_EVERY)) as server:
        plan = make_plan(generator, loop, server.url, path, FAIL_REQUESTS, delays_s)
        try:
            failures = find_generator(generator).run(plan, Unwatched()).failures
        except ExpectedError:
            return None, FAIL_REQUESTS // FAIL_EVERY
        served = server.counts().requests
    if plan.requests is not None:
        return failures, FAIL_REQUESTS // FAIL_EVERY
    # Bound by time: the server has also counted those that were on their way at the end.
    fewest = (served - plan.clients) // FAIL_EVERY
    return failures, min(max(failures, fewest), served // FAIL_EVERY)


def make_plan(
    generator: str,
    loop: str,
    url: str,
    path: Path,
    requests: int,
    delays_s: Sequence[float],
) -> LoadPlan:
    """So many requests by eight clients, or 30 a second; by time for who knows nothing else."""
    if loop == "open":
        return LoadPlan(url, (path,), OPEN_CLIENTS, 0, None, requests, rate=OPEN_RATE)
    if knows(generator, loop, seconds=None):
        return LoadPlan(url, (path,), DELAY_CLIENTS, 0, None, requests)
    seconds = round(requests * statistics.mean(delays_s) / DELAY_CLIENTS)
    return LoadPlan(url, (path,), DELAY_CLIENTS, 0, max(1, seconds))


def knows(generator: str, loop: str, seconds: float | None = 1.0) -> bool:
    """Whether a generator that is installed has such a load."""
    try:
        find_generator(generator).check(seconds, OPEN_RATE if loop == "open" else None)
    except ExpectedError:
        return False
    return True


def measure_stall_p99_ms(loop: str, path: Path, stall_s: float = STALL_S) -> float:
    """p99 of a server that takes 10 ms and stands still once."""
    rate = STALL_RATE if loop == "open" else None
    with run_known_server(Behaviour((STALL_DELAY_S,), 0, 100, stall_s)) as server:
        plan = LoadPlan(server.url, (path,), STALL_CLIENTS, 0, STALL_SECONDS, rate=rate)
        sample = find_generator("locust").run(plan, Unwatched())
    return round(percentile(sample.latencies_ms, 99), 1)


def find_problems(result: Calibration, fastest: dict[str, float]) -> list[str]:
    """What makes a generator that a benchmark offers doubtful."""
    offered = [delay for delay in result.delays if delay.generator in CHOICES]
    return [
        *find_slow(
            [one for one in result.instant if one.generator in CHOICES], fastest
        ),
        *(
            f"{delay.generator}, {delay.loop} loop: a percentile is off by"
            f" {100 * delay.error:.1f} %, expected at most"
            f" {100 * MOST_ERROR:.0f} %: is the machine quiet?"
            for delay in offered
            if delay.error > MOST_ERROR
        ),
        *(
            f"{delay.generator}, {delay.loop} loop: {delay.failures} failures counted of"
            f" {delay.expected_failures}"
            for delay in offered
            if delay.failures != delay.expected_failures
        ),
        *find_hidden_stall(result.stall_p99_ms),
    ]


def find_slow(instant: Sequence[Instant], fastest: dict[str, float]) -> list[str]:
    """Generators whose own rate is too near to a table's."""
    return [
        f"{one.generator} reaches {one.rate:.0f} req/s on {one.workload}, under"
        f" {HEAD_ROOM:g} x the fastest server's {fastest[one.workload]:.0f}: its own CPU"
        " takes part in that figure"
        for one in instant
        if one.workload in fastest and one.rate < HEAD_ROOM * fastest[one.workload]
    ]


def find_hidden_stall(p99_ms: dict[str, float]) -> list[str]:
    """Open loop must show a stall of two seconds in 10."""
    if p99_ms["open"] >= 1000 * STALL_S / 2:
        return []
    return [f"open loop hides a stall of {STALL_S:g} s: p99 {p99_ms['open']:.0f} ms"]
