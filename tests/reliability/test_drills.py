"""An operator's drills: one fault after the other beside a healthy model, and who says so when.

A real Prometheus scrapes the server every second and evaluates the shipped rules. In the test's
copy of them `for: 1m` and `for: 2m` are HOLD, so that an alert fires within a drill.

pytest -m reliability -s tests/reliability/test_drills.py
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from offpath.serving.check.running import check_server
from offpath.serving.finding import State
from tests.guarantees import guarantee
from tests.support.eventually import eventually
from tests.support.front import Seen, ServeProcess, load
from tests.support.images import jpeg
from tests.support.monitoring import Prometheus, run_prometheus
from tests.support.obedient_model import WORKERS, Flag, build_obedient, read_ready_pids

DRILL_S = float(os.environ.get("OFFPATH_DRILL_S", "25"))
HOLD, RESPONSE_TIMEOUT_S = "10s", 20
CLIENTS, PAUSE_S = 4, 0.05

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus"),
]


def build(folder: Path, name: str, version: str) -> Flag:
    """Builds an archive and returns the flag of its model."""
    flag = Flag(folder / f"{name}-{version[0]}")
    made = build_obedient(folder, flag, name, version, timeout_s=RESPONSE_TIMEOUT_S)
    made.rename(flag.file(".mar"))
    return flag


class Served(NamedTuple):
    """A running server, its Prometheus, and the flags of its models by name and version."""

    server: str
    has_door: bool
    process: ServeProcess
    prometheus: Prometheus
    flags: dict[str, Flag]

    def workers(self) -> set[int]:
        return read_ready_pids(self.process.ready["management"], "sick")

    def is_well(self) -> bool:
        return len(self.workers()) == WORKERS and self.ping() == ["200"]

    def ping(self) -> list[str]:
        """Returns the status of /ping, or the reason why there is none."""
        try:
            url = f"{self.process.url}/ping"
            return [str(httpx.get(url, timeout=2, trust_env=False).status_code)]
        except httpx.HTTPError as error:
            return [type(error).__name__]

    def check(self) -> list[str]:
        """Returns what `offpath check` finds lost or wrong; a process each would cost more."""
        found = check_server(self.process.ready["management"])
        found = (one for one in found if one.state is not State.OK)
        return [f"{one.state.value}: {one.area}, {one.subject}: {one.found}" for one in found]

    def alerts(self) -> list[str]:
        found = self.prometheus.ask("alerts")["alerts"]
        return [a["labels"]["alertname"] for a in found if a["state"] == "firing"]

    def suspended(self, *arguments: str) -> list[str]:
        """Runs `offpath canary`, and returns the canaries that get no requests."""
        command = [sys.executable, "-m", "offpath", "canary", "--json", *arguments]
        command += ["--url", self.process.url]
        return list(json.loads(subprocess.check_output(command))["suspended"])


@contextmanager
def looking(served: Served, row: dict[str, Any]) -> Iterator[None]:
    """Looks once per second. Keeps what a look says and the one before did not, and when."""
    kinds, stopped = ("ping", "check", "alerts"), threading.Event()
    befores = [getattr(served, what)() for what in kinds]
    struck_s = time.monotonic()

    def run(what: str, before: list[str]) -> None:
        row[what] = {}
        while not stopped.wait(1):
            found = getattr(served, what)()
            for said in set(found) - set(before):
                row[what].setdefault(said, round(time.monotonic() - struck_s, 1))
            before = found

    with ThreadPoolExecutor(len(kinds)) as pool:
        done = [pool.submit(run, *one) for one in zip(kinds, befores)]
        try:
            yield
        finally:
            stopped.set()
    for one in done:
        one.result()
    row["seconds"] = round(time.monotonic() - struck_s, 1)


@contextmanager
def drill(served: Served, name: str) -> Iterator[dict[str, Any]]:
    """Runs the load around a block that strikes. All is well again when the row is complete."""
    eventually(served.is_well)
    row: dict[str, Any] = {"drill": name, "server": served.server, "front_door": served.has_door}
    seen: dict[str, Seen] = {}
    with ExitStack() as stack:
        for model in sorted({flag.split()[0] for flag in served.flags}):
            url = f"{served.process.url}/predictions/{model}"
            seen[model] = stack.enter_context(load(url, [jpeg()], CLIENTS, PAUSE_S))
        eventually(lambda: all(one.statuses[200] > 50 for one in seen.values()))
        with looking(served, row):
            before = {model: one.statuses for model, one in seen.items()}
            yield row
            eventually(served.is_well)
            count = seen["sick"].statuses[200]
            eventually(lambda: seen["sick"].statuses[200] > count + 20)
    for model, one in seen.items():
        answers = one.statuses - before[model]
        answers += Counter(broken=one.broken.total(), refused=one.refused)
        row[model] = {str(status): count for status, count in answers.items()}
    print(f"\n{json.dumps(row)}", flush=True)
    assert set(row.get("well", {"200": 0})) == {"200"}


@pytest.fixture(
    scope="module",
    params=["granian --front", "granian --no-front", "torchserve --front", "torchserve --no-front"],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    server, door = request.param.split()
    has_door = door == "--front"
    folder = tmp_path_factory.mktemp("drills")
    names = ["sick 1.0", "well 1.0", "sick 2.0"]
    if not has_door:  # Granian then serves one model, and nobody has canaries
        names = names[:1] if server == "granian" else names[:2]
    flags = {name: build(folder, *name.split()) for name in names}
    archives = [flag.file(".mar") for flag in flags.values()]
    process = ServeProcess(
        folder / "errors", "--log-dir", folder / "logs", "--server", server, door, *archives
    )
    try:
        metrics = process.metrics_url.removesuffix("/metrics")
        with run_prometheus(folder, metrics, HOLD) as prometheus:
            prometheus.wait_until('up{job="offpath"} == 1')
            yield Served(server, has_door, process, prometheus, flags)
        assert process.terminate() == 0
    finally:
        process.kill()


@guarantee("All workers of a model die")
def test_a_dead_model_is_seen_and_costs_its_neighbour_nothing(served: Served) -> None:
    dead = served.flags["sick 1.0"].file(".dead")
    with drill(served, "all workers die, and none loads") as row:
        dead.touch()
        for worker in served.workers():
            os.kill(worker, signal.SIGKILL)
        time.sleep(DRILL_S)  # the length of the drill
        dead.unlink()
    assert "wrong: sick 1.0, workers: 0 of 2 are READY" in row["check"]
    # Java answers /ping.
    assert (not row["ping"]) == (not served.has_door and served.server == "torchserve")
    assert "OffpathModelDown" in row["alerts"]


@guarantee("Workers are stopped")
def test_stopped_workers_are_replaced(served: Served) -> None:
    stopped = served.workers()
    with drill(served, "SIGSTOP of all workers") as row:
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        eventually(lambda: stopped.isdisjoint(served.workers()) and served.workers())
    # Java waits for an answer; Granian's supervisor misses a worker's sign of life.
    first_s = min(row["ping"].values(), default=RESPONSE_TIMEOUT_S)
    assert (first_s >= RESPONSE_TIMEOUT_S) == (served.server == "torchserve")


@guarantee("A canary that only fails")
def test_a_canary_that_only_fails_gets_nothing(served: Served) -> None:
    if not served.has_door:
        pytest.skip("only the front door has canaries")
    fails = served.flags["sick 2.0"].file(".fails")
    with drill(served, "a canary at 100 % whose every batch fails") as row:
        fails.touch()
        served.suspended("sick=2.0:100%")
        eventually(served.suspended)
        eventually(lambda: "OffpathCanarySuspended" in served.alerts())
        fails.unlink()
        served.suspended("--stop", "sick")
    assert row["sick"]["200"] > sum(row["sick"].values()) / 2 and not row["ping"]
