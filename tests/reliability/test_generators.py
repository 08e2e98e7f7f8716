"""Load generators against a server with known behaviour: are their figures right on this machine?

Generators and server share the cores, so run this on a quiet machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpath.errors import ExpectedError
from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.limits import LimitMeter
from offpath.profiling.load.parameters import Load, LoadSample, WindowLoad
from offpath.profiling.load.workload import load_workload
from tests.support.known_server import Behaviour, Counts, run_known_server
from tests.support.silent_watcher import SilentWatcher

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(600)]

PERCENTS = (50, 95, 99)
MOST_ERROR = 0.02
# Varied delays, so that the clients do not queue in step for the generator's one thread.
DELAYS_S = tuple(0.2 + 0.01 * (7 * step % 16) for step in range(16))
# Shares no divisor with the number of delays, so failed requests have the same delays as others.
FAIL_EVERY = 11
REQUESTS = 640
CLIENTS = 8
# The open loop leaves the cores nearly idle and has spare connections.
OPEN_CLIENTS, OPEN_RATE = 64, 30.0
STALL_S = 2.0
# Allowed cost of the generator relative to decoding the photograph, which any server pays.
MOST_OF_DECODE = 0.25


def send(generator: str, plan: WindowLoad) -> LoadSample:
    found = find_generator(generator)
    try:
        found.check(plan)
    except ExpectedError as error:
        pytest.skip(str(error))
    return found.run(plan, SilentWatcher())


def make_plan(loop: str, url: str, path: Path) -> WindowLoad:
    """Plans a time for about REQUESTS requests."""
    if loop == "open":
        load = Load(seconds=REQUESTS / OPEN_RATE, warm_up_s=0, rate=OPEN_RATE)
        return load.for_window(url, (path,), OPEN_CLIENTS)
    seconds = round(REQUESTS * sum(DELAYS_S) / len(DELAYS_S) / CLIENTS)
    return Load(seconds=seconds, warm_up_s=0).plan(url, (path,), CLIENTS)


@pytest.mark.parametrize(
    ("generator", "loop"), [("locust", "closed"), ("locust", "open"), ("wrk", "closed")]
)
def test_percentiles_and_failures_are_those_of_the_server(generator: str, loop: str) -> None:
    path = load_workload("photos-55k").paths[0]
    with run_known_server(Behaviour(DELAYS_S, FAIL_EVERY)) as server:
        sample = send(generator, make_plan(loop, server.url, path))
        counts = server.counts()
    pairs = [
        (np.percentile(sample.latencies_ms, p), np.percentile(counts.held_ms, p)) for p in PERCENTS
    ]
    shown = ", ".join(f"p{p} {a:.1f}/{b:.1f}" for p, (a, b) in zip(PERCENTS, pairs))
    fewest, most = expected_failures(counts, sample)
    print(
        f"\n{generator}, {loop} loop, ms by the generator / by the server: {shown};"
        f" failures counted/were: {sample.failures}/{most}"
    )
    assert fewest <= sample.failures <= most
    assert max(abs(sent / held - 1) for sent, held in pairs) <= MOST_ERROR


def expected_failures(counts: Counts, sample: LoadSample) -> tuple[int, int]:
    """Returns the least and greatest number: requests in flight at the end are not counted."""
    on_its_way = counts.requests - sum(sample.statuses.values())
    assert 0 <= on_its_way <= CLIENTS
    return (counts.requests - on_its_way) // FAIL_EVERY, counts.requests // FAIL_EVERY


def test_open_loop_shows_a_stall_that_closed_loop_hides() -> None:
    path = load_workload("photos-55k").paths[0]
    p99_ms = {}
    for loop, rate in (("closed", None), ("open", 50.0)):
        with run_known_server(Behaviour((0.01,), stall_at=100, stall_s=STALL_S)) as server:
            sample = send(
                "locust",
                Load(seconds=10, warm_up_s=0, rate=rate).plan(server.url, (path,), 4),
            )
        p99_ms[loop] = np.percentile(sample.latencies_ms, 99)
    print(
        f"\nlocust's p99 with one stall of {STALL_S:g} s in 10 s:"
        f" closed loop {p99_ms['closed']:.0f} ms, open loop {p99_ms['open']:.0f} ms"
    )
    assert p99_ms["closed"] < 100 * STALL_S
    assert p99_ms["open"] > 500 * STALL_S


@pytest.mark.parametrize("generator", ["locust", "wrk"])
def test_a_request_costs_a_fraction_of_decoding_its_photograph(generator: str) -> None:
    shares = {}
    for name in ("photos-1200k", "photos-55k"):
        workload = load_workload(name)
        with run_known_server(Behaviour()) as server:
            sample = send(
                generator,
                Load(seconds=5, warm_up_s=1).plan(server.url, workload.paths, 32),
            )
        with LimitMeter("near-free", cores=1, batch_size=8, seconds=2) as meter:
            decode = meter.measure_decode(workload.paths)
        cpu_ms = 1e3 * sample.cpu_s / sample.ok
        decode_ms = 1e3 * decode.cpu_s / decode.images
        shares[name] = cpu_ms / decode_ms
        print(
            f"\n{generator}, {name}, a server that answers at once:"
            f" {sample.ok / sample.elapsed_s:,.0f} req/s, {cpu_ms:.3f} CPU ms per request,"
            f" {shares[name]:.1%} of decoding it"
        )
    assert max(shares.values()) <= MOST_OF_DECODE
