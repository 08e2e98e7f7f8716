"""Free ports: two processes never choose the same one."""

import os
import subprocess
import sys

import pytest

from offpath.errors import ExpectedError
from offpath.serving.process import ports
from offpath.serving.process.ports import resolve_ports

# Ports of this process alone: other tests and servers on this machine choose from `ports.PORTS`.
OWN = 10_000 + 50 * (os.getpid() % 200)
CHOOSE = f"""
import sys
from offpath.serving.process import ports
ports.PORTS = range({OWN}, {OWN + 40})
print(*ports.resolve_ports("127.0.0.1", [0] * 10), flush=True)
sys.stdin.read()
"""


def test_processes_that_start_at_once_choose_different_ports() -> None:
    command = [sys.executable, "-c", CHOOSE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    try:
        chosen = [int(port) for p in processes for port in p.stdout.readline().split()]
    finally:
        for process in processes:
            process.communicate(b"")
    assert len(set(chosen)) == len(chosen) == 30
    assert all(OWN <= port < OWN + 40 for port in chosen)


def test_ports_that_were_asked_for_stay_and_none_is_given_twice(monkeypatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(OWN + 40, OWN + 43))
    first, asked, second = resolve_ports("127.0.0.1", [0, 8080, 0])
    assert asked == 8080 and first != second
    with pytest.raises(ExpectedError, match=f"no port from {OWN + 40} to {OWN + 42}"):
        resolve_ports("127.0.0.1", [0, 0])
