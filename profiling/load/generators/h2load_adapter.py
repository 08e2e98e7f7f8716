"""Runs h2load (Debian's `nghttp2-client`): HTTP/2 where the URL is https, else HTTP/1.1.

Every request has the plan's first photograph as its body: it takes one. Like wrk it runs twice.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.profiling.load.generators.wrk_adapter import run_child, wait_until_drained
from offpath.profiling.load.plan import NO_REPLY, LoadPlan, LoadSample, Watcher

LOG = "requests.tsv"


class H2loadGenerator:
    """h2load with one thread, a connection a client and one request at a time on each."""

    name = "h2load"

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `Generator`."""
        if shutil.which("h2load") is None:
            raise WrongOption(
                "h2load is not on the PATH: install nghttp2-client, or use another --generator"
            )
        if seconds is None or rate is not None:
            raise WrongOption(
                "h2load is used by time and in a closed loop: give --seconds and no --rate"
            )

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `Generator`; `min_replies` is not looked at."""
        self.check(plan.seconds, plan.rate)
        if plan.seconds is None:
            raise RuntimeError("check() lets no such plan pass")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if plan.warm_up_s >= 1:
                run_child(make_command(plan, folder, plan.warm_up_s), None)
                wait_until_drained(plan)
            watcher.on_window()
            seconds = round(plan.seconds)
            cpu_s = run_child(make_command(plan, folder, seconds), watcher)
            return read_sample(folder / LOG, seconds, cpu_s)


def make_command(plan: LoadPlan, folder: Path, seconds: float) -> list[str]:
    """Its command line; a log of an earlier run is removed, it would be added to."""
    log = folder / LOG
    log.unlink(missing_ok=True)
    command = ["h2load", "-t1", f"-c{plan.clients}", "-m1", f"-D{round(seconds)}"]
    command += ["-d", str(plan.paths[0]), "--log-file", str(log)]
    for name, value in plan.headers.items():
        command += ["-H", f"{name}: {value}"]
    if not plan.url.startswith("https:"):
        command.append("--h1")
    return [*command, plan.url]


def read_sample(log: Path, seconds: float, cpu_s: float) -> LoadSample:
    """A row a request: its start, its status (-1: none), how many us it took."""
    statuses: Counter[str] = Counter()
    latencies = []
    with open(log, newline="") as rows:
        for _, status, took_us, *_ in csv.reader(rows, delimiter="\t"):
            statuses[status if int(status) > 0 else NO_REPLY] += 1
            if status == "200":
                latencies.append(int(took_us) / 1000)
    return LoadSample(seconds, dict(statuses), latencies, cpu_s)
