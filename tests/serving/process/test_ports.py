"""Free ports: two processes never choose the same one."""

import os
import subprocess
import sys

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
