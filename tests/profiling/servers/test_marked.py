"""All processes of a server, wherever they went."""

from __future__ import annotations

import subprocess
import sys
import uuid

import psutil
import pytest

from offpath.profiling.servers.launched import server_environment
from offpath.profiling.servers.marked import VARIABLE, end_members, find_members

pytestmark = pytest.mark.timing

# A leader whose workers leave the session, as BentoML's supervisor makes them; one hides its
# environment, as Ray's workers do.
LEADER = """
import subprocess, sys
hidden = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
inside = subprocess.Popen(["sleep", "600"], env={})
print(hidden.pid, worker.pid, inside.pid, flush=True)
hidden.wait()
"""


@pytest.fixture
def server():
    mark = uuid.uuid4().hex
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER],
        env=server_environment({VARIABLE: mark}),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    others = [psutil.Process(int(pid)) for pid in leader.stdout.readline().split()]
    yield mark, leader, *others
    leader.kill()
    for process in others:
        if process.is_running():
            process.kill()
    leader.communicate()


def pids(mark: str, session: int) -> set[int]:
    return {process.pid for process in find_members(mark, session)}


def test_workers_in_sessions_of_their_own_are_found_and_ended(server):
    mark, leader, hidden, worker, inside = server
    assert pids(mark, leader.pid) == {leader.pid, hidden.pid, worker.pid, inside.pid}
    assert pids("another", 2**22) == set()
    end_members(mark, leader.pid, timeout_s=10)
    assert pids(mark, leader.pid) == set()
    assert not hidden.is_running() or hidden.status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_leader_left_is_ended(server):
    mark, leader, _, worker, inside = server
    leader.kill()
    leader.wait()
    # By its mark, and by the session.
    assert pids(mark, leader.pid) == {worker.pid, inside.pid}
    end_members(mark, leader.pid, timeout_s=10)
    assert pids(mark, leader.pid) == set()
