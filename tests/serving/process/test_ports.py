"""Free ports: two processes never choose the same one."""

import subprocess
import sys

import pytest

from offpath.handler.errors import ExpectedError
from offpath.serving.process import ports
from offpath.serving.process.ports import resolve_ports

CHOOSE = """
import sys
from offpath.serving.process import ports
ports.PORTS = range(20000, 20040)
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
    assert all(20000 <= port < 20040 for port in chosen)


def test_ports_that_were_asked_for_stay_and_none_is_given_twice(monkeypatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(20040, 20043))
    first, asked, second = resolve_ports("127.0.0.1", [0, 8080, 0])
    assert asked == 8080 and first != second
    with pytest.raises(ExpectedError, match="no port from 20040 to 20042"):
        resolve_ports("127.0.0.1", [0, 0])
