"""A server as processes: started, waited for, and ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from offpath.errors import ExpectedError
from offpath.profiling.servers.server_process import (
    MARK_VARIABLE,
    command_line,
    end_members,
    find_members,
    is_ok,
    server_environment,
    start_process,
)
from offpath.serving.process.ports import resolve_ports
from offpath.serving.process.processes import find_family
from tests.support.eventually import eventually

# Answers on a port and has a child that ignores SIGTERM.
SERVER = """
import http.server, subprocess, sys
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn])
address = "127.0.0.1", int(sys.argv[1])
http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def start(folder: Path, code: str, is_ready, *arguments: str, **options):
    command = [sys.executable, "-c", code, *arguments]
    return start_process("known", command, folder / "server.log", is_ready, **options)


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_process_is_left_even_after_the_leading_one_was_killed(
    tmp_path: Path, is_killed: bool
) -> None:
    (port,) = resolve_ports("127.0.0.1", [0])
    is_ready = is_ok(f"http://127.0.0.1:{port}/")
    with start(tmp_path, SERVER, is_ready, str(port)) as server:
        workers = [p.pid for p in server.members() if p.pid != server.pid]
        assert len(workers) == 1
        if is_killed:
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: not server.is_running())

    assert find_family(server.pid) == []
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in workers))


def test_server_that_ends_while_starting_is_reported_with_its_cause(tmp_path: Path) -> None:
    code = "print('ValueError: no such model'); print('bye'); raise SystemExit(5)"

    with pytest.raises(ExpectedError, match="code 5.*\n.*no such model") as caught:
        with start(tmp_path, code, lambda: False):
            pass

    assert "bye" not in str(caught.value)


def test_server_that_never_answers_is_ended_after_its_time(tmp_path: Path) -> None:
    code, is_ready = "import time; time.sleep(600)", is_ok("http://127.0.0.1:9/")

    with pytest.raises(ExpectedError, match="not ready within 1 s"):
        with start(tmp_path, code, is_ready, str(tmp_path), timeout_s=1):
            pass

    assert not [p for p in psutil.process_iter() if str(tmp_path) in command_line(p)]


# A leader whose workers leave the session; one hides its
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
def marked():
    mark = uuid.uuid4().hex
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER],
        env=server_environment({MARK_VARIABLE: mark}),
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


def test_workers_in_sessions_of_their_own_are_found_and_ended(marked):
    mark, leader, hidden, worker, inside = marked
    assert pids(mark, leader.pid) == {leader.pid, hidden.pid, worker.pid, inside.pid}
    assert pids("another", 2**22) == set()
    end_members(mark, leader.pid, timeout_s=60)
    assert pids(mark, leader.pid) == set()
    assert not hidden.is_running() or hidden.status() == psutil.STATUS_ZOMBIE
