from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import eventually

# Notes what it is told in a file, as it may have no terminal any more.
SERVER = """
import sys, time
from pathlib import Path
from offpath.serving.process.interrupts import *
log = Path(sys.argv[1])
try:
    with stopping_on_signals(), noting_hangup() as hangup:
        log.write_text("ready")
        while True:
            if hangup.take():
                log.write_text("hangup")
            time.sleep(0.01)
except Terminated:
    print("draining", flush=True)
    print("draining", file=sys.stderr, flush=True)
    log.write_text("stopped")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Returns both ends of a terminal."""
    yield pty.openpty()


def start(log: Path, output: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(log)], stdout=output, stderr=output
    )
    eventually(lambda: log.exists() and log.read_text() == "ready")
    return process


def test_sighup_ends_nothing(log: Path, terminal: tuple[int, int]) -> None:
    process = start(log, terminal[1])
    process.send_signal(signal.SIGHUP)
    eventually(lambda: log.read_text() == "hangup")
    process.terminate()
    assert process.wait() == 0
    assert log.read_text() == "stopped"


def test_a_terminal_that_is_closed_ends_a_server_as_sigterm_does(
    log: Path, terminal: tuple[int, int]
) -> None:
    """Printing to the closed terminal would fail and cut the drain short."""
    process = start(log, terminal[1])
    for end in terminal:
        os.close(end)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert log.read_text() == "stopped"
