"""After SIGKILL of the process that started servers, nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.serving.process.processes import find_family
from tests.guarantees import guarantee
from tests.serving.processes import is_alive
from tests.support.eventually import eventually

# Each prints a line of numbers when all is there, and then stays.
SESSION = """
import subprocess, sys, time
from offpath.serving.process.guard import Guard
# Its children ignore SIGTERM, and it does not wait for them.
script = "(trap '' TERM; exec sleep 600) & (trap '' TERM; exec sleep 600) & wait"
leader = subprocess.Popen(["bash", "-c", script], start_new_session=True)
guard = Guard(leader.pid, sys.argv[1])
print(leader.pid, guard.pid, flush=True)
time.sleep(600)
"""
POOL = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from os import getpid
from offpath.serving.process.guard import follow_parent
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), follow_parent)
print(pool.submit(getpid).result(), flush=True)
time.sleep(600)
"""
MARKED = """
import subprocess, sys, time
from offpath.serving.process.guard import Guard
from offpath.profiling.servers.server_process import (
    MARK_VARIABLE, MODULE, server_environment
)
mark = "guarded-" + sys.argv[1]
left = subprocess.Popen(["sleep", "600"], env=server_environment({MARK_VARIABLE: mark}),
                        start_new_session=True)
nobodys_session = 2**22
guard = Guard(mark, nobodys_session, module=MODULE)
print(left.pid, guard.pid, flush=True)
time.sleep(600)
"""


def kill_after_start(script: str, argument: object) -> list[str]:
    """Runs a script until it has printed its line, kills it and returns the line's words."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(argument)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    words = process.stdout.readline().split()
    process.kill()
    process.stdout.close()  # what is left behind may keep its other end open
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return words


GUARDED = """
import os, signal, sys
from offpath.serving.process import guard
from offpath.serving.process.interrupts import Terminated, stopping_on_signals
class Guard(guard.Guard):
    def __init__(self, pid, *folders):
        print(pid, flush=True)
        if sys.argv[1] == "no-guard":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(pid, *folders)
guard.Guard = Guard
try:
    with stopping_on_signals():
        guard.start_guarded(["sleep", "600"])
except (OSError, Terminated) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("case", "raised"), [("no-guard", "BlockingIOError"), ("signal", "Terminated")]
)
def test_a_start_that_fails_or_is_interrupted_leaves_nothing(case: str, raised: str) -> None:
    command = [sys.executable, "-c", GUARDED, case]
    pid, *said = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.split()
    assert said == [raised]
    eventually(lambda: not is_alive(int(pid)))


@guarantee(
    "Processes that outlive their server",
    "serving/process/guard.py",
    "    end_family(int(leader_pid), STOP_TIMEOUT_S)",
    "    return",
)
@guarantee(
    "`offpath serve` is killed",
    "serving/process/guard.py",
    "        shutil.rmtree(folder, ignore_errors=True)",
    "        pass",
)
def test_a_session_is_ended_although_its_members_ignore_sigterm(tmp_path: Path) -> None:
    folder = tmp_path / "of the server"
    folder.mkdir()
    leader, guard = map(int, kill_after_start(SESSION, folder))
    eventually(lambda: find_family(leader) == [])
    eventually(lambda: not is_alive(guard) and not folder.exists())


def test_workers_outside_the_session_are_ended_by_their_mark() -> None:
    pids = list(map(int, kill_after_start(MARKED, os.getpid())))
    eventually(lambda: not any(map(is_alive, pids)))


def test_processes_that_measure_limits_end_with_their_parent() -> None:
    pids = list(map(int, kill_after_start(POOL, "")))
    eventually(lambda: not any(map(is_alive, pids)))
