"""The rate of the first seconds after READY, beside the steady rate of the same server.

    pytest -m reliability -s tests/reliability/test_first_seconds.py

The figures need cores without other work: a round with other work is of no use.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.parameters import Load
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.registry import make_servers
from tests.support.silent_watcher import SilentWatcher

ROUNDS = int(os.environ.get("OFFPATH_FIRST_ROUNDS", "5"))
CLIENTS = 32
FIRST = Load(seconds=5, warm_up_s=0, generator="wrk")
STEADY = Load(seconds=10, warm_up_s=10, generator="wrk")
# Least share of the steady rate. TorchServe's Java code is compiled under load, so its share is
# printed only.
LEAST_SHARE = {"offpath-granian": 0.95, "offpath-granian-direct": 0.95, "offpath": 0.0}

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 * ROUNDS + 120)]


@pytest.mark.parametrize("name", LEAST_SHARE)
def test_the_first_seconds_after_ready_reach_the_steady_rate(name: str, tmp_path: Path) -> None:
    (server,) = make_servers([name], load_model("near-free"), cores=2)
    why_not = server.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    server.prepare(tmp_path / name)
    bodies = load_workload("photos-55k").paths
    wrk = find_generator("wrk")
    shares = []
    for _ in range(ROUNDS):
        rates = []
        with server.running() as running:
            for load in (FIRST, STEADY):
                window = load.for_window(running.predict_url, bodies, CLIENTS)
                sample = wrk.run(window, SilentWatcher())
                assert not sample.failures
                rates.append(sample.ok / sample.elapsed_s)
        shares.append(rates[0] / rates[1])
        print(f"\n{name}: first 5 s {rates[0]:.0f}/s, steady {rates[1]:.0f}/s", end="")
    share = statistics.median(shares)
    print(f"\n{name}: median {share:.3f} of the steady rate")
    assert share >= LEAST_SHARE[name]
