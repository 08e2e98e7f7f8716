from __future__ import annotations

import subprocess
import sys
import time
import uuid

import psutil
import pytest

from offpath.profiling.servers.launched import server_environment
from offpath.profiling.servers.marked import VARIABLE, find_marked, kill_marked

pytestmark = pytest.mark.timing

# A leader whose worker leaves the session, as BentoML's supervisor makes them, and hides its
# environment, as Ray's workers do.
LEADER = """
import subprocess, sys
hidden = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(hidden.pid, worker.pid, flush=True)
hidden.wait()
"""


@pytest.fixture
def marked():
    server_id = uuid.uuid4().hex
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER],
        env=server_environment({VARIABLE: server_id}),
        stdout=subprocess.PIPE,
        text=True,
    )
    hidden, worker = map(int, leader.stdout.readline().split())
    yield server_id, leader, hidden, worker
    for pid in (hidden, worker):
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()
    leader.kill()
    leader.communicate()


def pids(server_id: str) -> set[int]:
    return {process.pid for process in find_marked(server_id)}


def test_workers_in_sessions_of_their_own_are_found_and_killed(marked):
    server_id, leader, hidden, worker = marked
    assert pids(server_id) == {leader.pid, hidden, worker}
    assert pids("another") == set()
    kill_marked(server_id, timeout_s=10)
    assert pids(server_id) == set()
    leader.wait(timeout=10)


def test_a_worker_is_killed_whose_leader_died(marked):
    server_id, leader, _, worker = marked
    leader.kill()
    leader.wait()
    assert pids(server_id) == {worker}
    kill_marked(server_id, timeout_s=10)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(worker) and time.monotonic() < deadline:
        if psutil.Process(worker).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    assert pids(server_id) == set()
