"""A server as processes: started, waited for, and ended with everything it started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.servers.launched import (
    Launch,
    is_ok,
    launched,
    server_environment,
)
from offpath.profiling.servers.marked import command_line
from offpath.serving.process.ports import resolve_ports
from offpath.serving.process.processes import find_session_members

pytestmark = pytest.mark.timing

# Answers on a port and has a child that ignores SIGTERM.
SERVER = """
import http.server, subprocess, sys
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn])
address = "127.0.0.1", int(sys.argv[1])
http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def make_launch(folder: Path, code: str, *arguments: str) -> Launch:
    command = [sys.executable, "-c", code, *arguments]
    return Launch("known", command, folder / "server.log")


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_process_is_left_even_after_the_leading_one_was_killed(
    tmp_path: Path, is_killed: bool
) -> None:
    (port,) = resolve_ports("127.0.0.1", [0])
    launch = make_launch(tmp_path, SERVER, str(port))

    with launched(launch, is_ok(f"http://127.0.0.1:{port}/")) as server:
        workers = [p.pid for p in server.members() if p.pid != server.pid]
        assert len(workers) == 1
        if is_killed:
            os.kill(server.pid, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(server.pid)], timeout=10)
            assert not server.is_running()

    assert find_session_members(server.pid) == []
    assert not any(psutil.pid_exists(pid) for pid in workers)


def test_server_that_ends_while_starting_is_reported_with_its_cause(
    tmp_path: Path,
) -> None:
    code = "print('ValueError: no such model'); print('bye'); raise SystemExit(5)"

    with pytest.raises(ExpectedError, match="code 5.*\n.*no such model") as caught:
        with launched(make_launch(tmp_path, code), lambda: False):
            pass

    assert "bye" not in str(caught.value)


def test_server_that_never_answers_is_ended_after_its_time(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, "import time; time.sleep(600)", str(tmp_path))

    with pytest.raises(ExpectedError, match="not ready within 1 s"):
        with launched(launch, is_ok("http://127.0.0.1:9/"), timeout_s=1):
            pass

    assert not [p for p in psutil.process_iter() if str(tmp_path) in command_line(p)]


def test_missing_program_is_an_expected_error(tmp_path: Path) -> None:
    launch = Launch("known", [str(tmp_path / "nothing")], tmp_path / "server.log")

    with pytest.raises(ExpectedError, match="cannot be started"):
        with launched(launch, lambda: True):
            pass


def test_servers_see_neither_our_packages_nor_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("http_proxy", "http://proxy")

    environment = server_environment({"OMP_NUM_THREADS": "1"})

    assert environment["OMP_NUM_THREADS"] == "1"
    assert "PYTHONPATH" not in environment
    assert "http_proxy" not in environment
