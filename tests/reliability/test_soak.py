"""Minutes of good, bad and hostile items at the front door: nothing may grow or get lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import archives
from offpath.serving.prediction_log.reading import compare
from offpath.serving.process.processes import find_fork_helpers
from tests.guarantees import guarantee
from tests.reliability.conftest import LogTrial
from tests.support import costly
from tests.support.front import FRONTS, FrontProcess, Seen, load
from tests.support.images import rejected

MINUTES = float(os.environ.get("OFFPATH_SOAK_MINUTES", "10"))
CLIENTS = int(os.environ.get("OFFPATH_SOAK_CLIENTS", "16"))
PAUSE_S = float(os.environ.get("OFFPATH_SOAK_PAUSE_S", "0"))
RELOAD_MINUTES = float(os.environ.get("OFFPATH_SOAK_RELOAD_MINUTES", "10"))
SAMPLE_EVERY_S = 10.0
# Caches and pools fill during the first minute.
SETTLED_AFTER_S = 60.0
# A slope over a shorter time is noise.
MIN_SETTLED_S = 180.0
# Growth over the whole run that is more than noise: one body, thread, descriptor or MB.
MIN_GROWTH = 1.0
MAX_BAD_BYTES = 1_000_000
SHOWN_ROWS = 12
# Unit, and the growth per hour that fails the test; noise and the traces of a reload are below it.
LIMITS = {
    "workers MB": 60.0,
    "server MB": 120.0,
    "door MB": 30.0,
    "descriptors": 60.0,
    "threads": 30.0,
    "spool MB": 5.0,
    "logs MB": 60.0,
    "bodies": 5.0,
}

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 * MINUTES + 600)]


def make_bodies() -> list[bytes]:
    """Makes some photographs and each kind of bad and hostile item."""
    bad = [body for body, *_ in rejected().values() if len(body) < MAX_BAD_BYTES]
    hostile = [
        costly.progressive_jpeg(1000, more_scans=2000),
        costly.png_of_chunks(50_000),
        costly.gif_of_comments(200_000),
        costly.bmp_of_runs(1000, 400_000),
    ]
    bodies: list[bytes] = []
    good = load_workload("photos-55k").read()
    for number, body in enumerate([*bad, *hostile]):
        bodies += [good[(3 * number + more) % len(good)] for more in range(3)]
        bodies.append(body)
    return bodies


class Samples:
    """Sizes of the processes, the spool and the logs over time."""

    def __init__(self, door: FrontProcess, trial: LogTrial) -> None:
        self.rows: list[tuple[float, dict[str, float]]] = []
        self.is_reloading = False
        self._door, self._spool = door, trial.spool

    def take(self, at_s: float) -> None:
        """Takes one row, unless two servers run side by side."""
        if not self.is_reloading:
            with suppress(psutil.Error, FileNotFoundError):  # one row less: a process has ended
                self.rows.append((at_s, self._measure()))

    def _measure(self) -> dict[str, float]:
        door = self._door
        servers = door.servers()
        helpers = [pid for server in servers for pid in find_fork_helpers(server)]
        groups = {
            "workers MB": door.python_workers() + helpers,
            "server MB": servers,
            "door MB": [door.process.pid, *door.children("nginx"), *door.nginx_workers()],
        }
        everybody = [psutil.Process(pid) for pids in groups.values() for pid in pids]
        return {
            **{name: _rss_mb(pids) for name, pids in groups.items()},
            "descriptors": sum(process.num_fds() for process in everybody),
            "threads": sum(process.num_threads() for process in everybody),
            "spool MB": _folder_mb(self._spool),
            "logs MB": _folder_mb(door.log_dir),
            "bodies": len([path for path in door.bodies.rglob("*") if path.is_file()]),
        }

    def judge(self) -> list[str]:
        """Prints the rows and a verdict on each column; returns the columns that grow."""
        rows = [row for row in self.rows if row[0] >= SETTLED_AFTER_S]
        names = list(LIMITS)
        print("\n| minute | " + " | ".join(names) + " |")
        print("|---" * (len(names) + 1) + "|")
        for at_s, row in rows[:: max(1, len(rows) // SHOWN_ROWS)]:
            cells = " | ".join(f"{row[name]:,.1f}" for name in names)
            print(f"| {at_s / 60:.1f} | {cells} |")
        settled_s = rows[-1][0] - rows[0][0] if rows else 0.0
        if settled_s < MIN_SETTLED_S:
            print("too short for slopes")
            return []
        hours = np.array([at_s for at_s, _ in rows]) / 3600
        slopes = {n: np.polyfit(hours, [row[n] for _, row in rows], 1)[0] for n in names}
        least = 3600 * MIN_GROWTH / settled_s
        growing = [n for n in names if slopes[n] > max(LIMITS[n], least)]
        cells = " | ".join(
            f"{slope:+,.1f}/h, {'growing' if name in growing else 'flat'}"
            for name, slope in slopes.items()
        )
        print(f"| slope | {cells} |")
        return growing


def _rss_mb(pids: list[int]) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


def _folder_mb(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6


@contextmanager
def sampling(samples: Samples) -> Iterator[None]:
    """Takes samples on a thread of its own while the block runs."""
    ended, start_s = threading.Event(), time.monotonic()

    def run() -> None:
        while not ended.wait(SAMPLE_EVERY_S):
            samples.take(time.monotonic() - start_s)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


def run_minutes(door: FrontProcess, samples: Samples) -> Seen:
    """Runs the load with its reloads."""
    url = f"{door.url}/predictions/{archives.NAME}"
    end_s = time.monotonic() + 60 * MINUTES
    next_reload_s = time.monotonic() + 60 * RELOAD_MINUTES
    with sampling(samples):
        with load(url, make_bodies(), clients=CLIENTS, pause_s=PAUSE_S) as seen:
            while time.monotonic() < end_s:
                time.sleep(1.0)
                if time.monotonic() > next_reload_s:
                    next_reload_s += 60 * RELOAD_MINUTES
                    samples.is_reloading = True
                    done = door.reload()
                    samples.is_reloading = False
                    assert done.returncode == 0, done.stderr
    return seen


@guarantee("Hours of good and hostile images")
@pytest.mark.parametrize("product", FRONTS)
def test_minutes_of_good_bad_and_hostile_items_grow_nothing_and_lose_nothing(
    trial: LogTrial, tmp_path: Path, product: str
) -> None:
    env = {**trial.s3.environ, "OFFPATH_SPOOL_DIR": str(trial.spool)}
    # Java touches its fixed heap bit by bit, which would hide what grows beside it.
    env["JAVA_TOOL_OPTIONS"] = "-XX:+AlwaysPreTouch"
    store = trial.archive.parent
    with FRONTS[product](store, tmp_path / "logs", archives.NAME, **env) as door:
        samples = Samples(door, trial)
        seen = run_minutes(door, samples)
        door.terminate()
    trial.ship()
    answered = set(seen.answered)
    verdict = compare(trial.bucket.event_counts().elements(), answered)
    print(
        f"\n{product}, {MINUTES:g} minutes, {CLIENTS} clients pausing {PAUSE_S:g} s: {seen};"
        f" {verdict.records:,} records, {len(verdict.missing)} lost,"
        f" {len(verdict.double)} double"
    )
    growing = samples.judge()
    assert (verdict.missing, verdict.double) == ([], [])
    assert not seen.broken and not seen.refused
    assert not {status for status in seen.statuses if status >= 500}
    assert growing == []
