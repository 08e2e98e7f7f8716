"""The system calls of processes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CALLS = (
    "open,openat,openat2,creat,connect,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,execve,fork,vfork,stat,lstat"
)


@contextmanager
def traced(pids: list[int]) -> Iterator[list[str]]:
    """Runs strace on processes and their threads; the list has their calls after the block."""
    calls: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "calls"
        attach = [option for pid in pids for option in ("-p", str(pid))]
        strace = subprocess.Popen(
            ["strace", "-f", "-e", f"trace={CALLS}", "-o", output, *attach],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert strace.stderr is not None
        if not all("attached" in strace.stderr.readline() for _ in pids):
            pytest.skip("strace may not attach here")
        try:
            yield calls
        finally:
            strace.terminate()
            strace.communicate()
        calls += [line for line in output.read_text().splitlines() if "(" in line]
