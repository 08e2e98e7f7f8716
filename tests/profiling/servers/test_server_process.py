"""A server as processes: started, waited for, and ended with everything it started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from offpath.profiling.servers.server_process import is_ok, start_process
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
