"""Faults one after the other under load, through the front door: who notices, and what is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from offpath.profiling.servers import archives
from offpath.serving.log_reading import compare
from offpath.serving.processes import find_fork_helpers, find_session_members
from tests.reliability.logged_server import LogTrial
from tests.serving.front.test_door_lifecycle import (
    kill_java,
    kill_nginx,
    kill_nginx_worker,
    kill_worker,
)
from tests.support.clients import send_for
from tests.support.front import FrontProcess, Seen, front, is_alive, load, wait_until
from tests.support.pictures import jpeg
from tests.support.s3_faults import OUTAGES, PASS, WRONG

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1200)]

STAGE_S = float(os.environ.get("OFFPATH_FAULT_STAGE_S", "4"))
CLIENTS = 4
DISK = "size=4m"
# One passes through Java, one through a file.
BODIES = [jpeg(size=(500, 333)), jpeg(size=(2048, 1365))]


@dataclass
class Bench:
    """A front door whose log goes to S3 through a proxy, and its two small disks."""

    door: FrontProcess
    trial: LogTrial
    folder: Path
    answered: list[str] = field(default_factory=list)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def bench(trial: LogTrial, tmp_path: Path) -> Iterator[Bench]:
    env = {**trial.s3.environ, "OFFPATH_SPOOL_DIR": str(trial.spool)}
    store = trial.archive.parent
    with small_disk(trial.spool), small_disk(tmp_path / "logs"):
        with front(store, tmp_path / "logs", archives.NAME, **env) as door:
            yield Bench(door, trial, tmp_path)


def kill_fork_server(bench: Bench) -> None:
    (java,) = bench.door.children("java")
    helpers = [psutil.Process(pid) for pid in find_fork_helpers(java)]
    (server,) = [p for p in helpers if "fork_server.py" in " ".join(p.cmdline())]
    server.kill()


def replace_model(bench: Bench) -> None:
    assert bench.door.reload().returncode == 0


def answer_wrongly(mode: str) -> Callable[[Bench], None]:
    def strike(bench: Bench) -> None:
        bench.trial.proxy.set_mode(mode)
        time.sleep(STAGE_S)
        bench.trial.proxy.set_mode(PASS)

    return strike


def fill_disk(name: str) -> Callable[[Bench], None]:
    def strike(bench: Bench) -> None:
        path = bench.folder / name / "filler"
        with suppress(OSError), open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(STAGE_S)
        path.unlink()

    return strike


def take_descriptors(bench: Bench) -> None:
    """The workers can open nothing more for a while."""
    before = {}
    for pid in bench.door.python_workers():
        before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        most = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[pid][1]))
    time.sleep(STAGE_S)
    for pid, limits in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def kill_second_server(bench: Bench) -> None:
    """Another server on the same spool; the first ships what it leaves."""
    server = bench.trial.make_server("second")
    with server:
        url = f"{server.inference_url}/predictions/{archives.NAME}"
        replies = send_for(url, BODIES[:1], 2, STAGE_S / 2)
        for process in find_session_members(server.java_pid):
            process.kill()
    bench.answered += [reply.request_id for reply in replies if reply.status == 200]


KILLS: dict[str, Callable[[Bench], None]] = {
    "SIGKILL worker": lambda bench: kill_worker(bench.door),
    "SIGKILL fork server": kill_fork_server,
    "SIGKILL Java": lambda bench: kill_java(bench.door),
    "SIGKILL nginx's worker": lambda bench: kill_nginx_worker(bench.door),
    "SIGKILL nginx": lambda bench: kill_nginx(bench.door),
}
# No request may notice these.
UNNOTICED: dict[str, Callable[[Bench], None]] = {
    **{f"S3 {mode}": answer_wrongly(mode) for mode in (*OUTAGES, *WRONG)},
    "disk full: logs": fill_disk("logs"),
    "model replaced": replace_model,
    "two servers, one spool": kill_second_server,
}
# These may cost what their rows say: records by the policy, or requests.
COSTLY: dict[str, Callable[[Bench], None]] = {
    "disk full: spool": fill_disk("spool"),
    "no descriptors": take_descriptors,
}


def run_stage(bench: Bench, name: str, strike: Callable[[Bench], None]) -> Seen:
    """Strikes under load and waits until all is well again; prints a row."""
    url = f"{bench.door.url}/predictions/{archives.NAME}"
    workers = len(bench.door.python_workers())
    with load(url, BODIES, clients=CLIENTS, pause_s=0.05) as seen:
        time.sleep(0.5)
        start_s = time.monotonic()
        strike(bench)
        if name in KILLS:
            # Before that, whoever watches over it may not have seen its end.
            time.sleep(1.0)
        else:
            start_s = time.monotonic()
        wait_until(
            lambda: bench.door.is_healthy()
            and len(bench.door.python_workers()) == workers
        )
        before = seen.statuses[200]
        wait_until(lambda: seen.statuses[200] > before + 8)
        recovery_s = time.monotonic() - start_s
    failed = sum(n for status, n in seen.statuses.items() if status != 200)
    print(
        f"| {name} | {seen.statuses[200]} | {failed} | {seen.refused} |"
        f" {sum(seen.broken.values())} | {recovery_s:.1f} |"
    )
    return seen


def test_faults_under_load(bench: Bench) -> None:
    print(
        "\n| fault | 200 | other | refused | broken | well again s |\n"
        + "|---" * 6
        + "|"
    )
    noticed = []
    for name, strike in UNNOTICED.items():
        seen = run_stage(bench, name, strike)
        bench.answered += seen.answered
        if set(seen.statuses) != {200} or seen.broken or seen.refused:
            noticed.append(f"{name}: {seen}")
    for name, strike in KILLS.items():
        bench.answered += run_stage(bench, name, strike).answered
        # A kill whose consequences come late shall not be the next one's.
        with load(f"{bench.door.url}/predictions/{archives.NAME}", BODIES) as seen:
            time.sleep(STAGE_S / 2)
        bench.answered += seen.answered
    spared: list[str] = []
    for name, strike in COSTLY.items():
        spared += run_stage(bench, name, strike).answered
    bench.door.terminate()
    bench.trial.ship()
    counts = bench.trial.bucket.event_counts()
    verdict = compare(counts.elements(), set(bench.answered))
    dropped = len(set(spared) - counts.keys())
    print(
        f"{verdict.asked:,} answered: {len(verdict.missing)} lost,"
        f" {len(verdict.double)} double; {dropped} of {len(spared)} given up on the full disk"
        " and without descriptors"
    )
    assert noticed == []
    assert (verdict.missing, verdict.double) == ([], [])


def test_faults_sigkill_of_serve_leaves_no_process(trial: LogTrial) -> None:
    """Without the front door: Java, fork server and workers end with `offpath serve`."""
    command = ["-m", "offpath", "serve", archives.NAME, "--json", "--port", "0"]
    command += ["--management-port", "0", "--metrics-port", "0"]
    command += ["--model-store", str(trial.archive.parent)]
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        env={**os.environ, "OFFPATH_PREDICTION_LOG": "off"},
    ) as serve:
        assert serve.stdout is not None and serve.stdout.readline()
        left = [p.pid for p in psutil.Process(serve.pid).children(recursive=True)]
        serve.send_signal(signal.SIGKILL)
        start_s = time.monotonic()
    wait_until(lambda: not any(map(is_alive, left)), 30)
    print(
        f"\n{len(left)} processes gone {time.monotonic() - start_s:.1f} s after SIGKILL"
    )
    assert len(left) > 2
