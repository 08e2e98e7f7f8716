"""Minutes of good and bad items against our server: statuses, restarts, the workers' memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from offpath.profiling.core.host import count_cores
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.sampling import Ticker, process_rss_bytes
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.torchserve import make_offpath
from tests.support.pictures import rejected
from tests.support.silent_watcher import SilentWatcher

MINUTES = float(os.environ.get("OFFPATH_SOAK_MINUTES", "10"))
CLIENTS = 16
SAMPLE_EVERY_S = 10.0
# The first minute fills caches and pools.
SETTLED_AFTER_S = 60.0
# A slope over less than this is noise.
LEAST_SETTLED_S = 180.0
MOST_MB_PER_MIN = 1.0
MOST_BAD_BYTES = 1_000_000

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 * MINUTES + 300)]

# (seconds into the load, resident bytes by worker's process id)
Memory = list[tuple[float, dict[int, int]]]


def write_bad_items(folder: Path) -> list[Path]:
    """One of each kind; the one that is bad for its size alone would be all of the load."""
    bodies = [body for body, *_ in rejected().values() if len(body) < MOST_BAD_BYTES]
    paths = [folder / f"bad-{number}" for number in range(len(bodies))]
    for path, body in zip(paths, bodies):
        path.write_bytes(body)
    return paths


def test_minutes_of_good_and_bad_items_cost_no_worker_and_no_memory(
    tmp_path: Path,
) -> None:
    good, bad = load_workload("photos-55k").paths, write_bad_items(tmp_path)
    server = make_offpath(load_model("near-free"), count_cores())
    server.prepare(tmp_path / "store")
    memory: Memory = []
    with server.running() as running:

        def sample_memory(at_s: float) -> None:
            pids = running.groups()["workers"]
            memory.append((at_s, {pid: process_rss_bytes(pid) for pid in pids}))

        plan = LoadPlan(running.predict_url, (*good, *bad), CLIENTS, 3, 60 * MINUTES)
        with Ticker(SAMPLE_EVERY_S, sample_memory):
            sample = find_generator("locust").run(plan, SilentWatcher())
        log = running.log_path().read_text(errors="replace")[-2000:]
    total = sum(sample.statuses.values())
    print(
        f"\n{total:,} replies in {sample.elapsed_s / 60:.1f} min"
        f" ({total / sample.elapsed_s:.0f}/s), {len(good)} good items in turn with"
        f" {len(bad)} bad ones: {dict(sorted(sample.statuses.items()))}"
    )
    assert all(s == "200" or s.startswith("4") for s in sample.statuses), log
    # Items go in turn: each good one was answered, and each bad one refused.
    share = len(good) / (len(good) + len(bad))
    assert sample.ok / total == pytest.approx(share, abs=0.01)
    assert len({frozenset(team) for _, team in memory}) == 1, "a worker restarted"
    check_memory(memory)


def check_memory(memory: Memory) -> None:
    """The workers together, after the first minute."""
    times_s, totals_mb = np.array(
        [(at_s, sum(team.values()) / 1e6) for at_s, team in memory]
    ).T
    if times_s[-1] - SETTLED_AFTER_S < LEAST_SETTLED_S:
        print(f"workers' memory: {totals_mb[0]:,.1f} to {totals_mb[-1]:,.1f} MB")
        return
    settled = times_s >= SETTLED_AFTER_S
    times_s, totals_mb = times_s[settled], totals_mb[settled]
    slope = np.polyfit(times_s / 60, totals_mb, 1)[0]
    print(
        f"workers' memory: {totals_mb[0]:,.1f} MB after {times_s[0]:.0f} s,"
        f" {totals_mb[-1]:,.1f} MB after {times_s[-1]:.0f} s, slope {slope:+.3f} MB/min"
    )
    assert slope <= MOST_MB_PER_MIN
