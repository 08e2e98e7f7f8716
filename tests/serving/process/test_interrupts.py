from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offpath.serving.process.interrupts import Terminated, stopping_on_signals
from tests.support.eventually import MAX_S, eventually

# Notes in a file how it ends, as it may have no terminal any more.
SERVER = """
import sys, time
from pathlib import Path
from offpath.serving.process.interrupts import *
log = Path(sys.argv[1])
try:
    with stopping_on_signals(), noting_hangup():
        log.write_text("ready")
        time.sleep(600)
except Terminated:
    print("draining", flush=True)
    print("draining", file=sys.stderr, flush=True)
    log.write_text("stopped")
"""


def test_a_terminal_that_is_closed_ends_a_server_as_sigterm_does(tmp_path: Path) -> None:
    """Printing to the closed terminal would fail and cut the drain short."""
    log, (ours, theirs) = tmp_path / "log", pty.openpty()
    command = [sys.executable, "-c", SERVER, str(log)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs)
    eventually(lambda: log.exists() and log.read_text() == "ready")
    os.close(ours)
    os.close(theirs)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert log.read_text() == "stopped"


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_that_comes_while_python_drops_exceptions_still_ends_the_server(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    """It came during an import, and `offpath serve` went on for ever."""

    class Destroyed:
        def __del__(self) -> None:
            signal.raise_signal(number)

    with pytest.raises(raised), stopping_on_signals():
        Destroyed()
        time.sleep(MAX_S)


# A thread is running before the call that starts it returns.
ASKING = """
import threading, types
from offpath.serving.front.readiness import Readiness
from offpath.serving.process.interrupts import Terminated
wait = threading.Event.wait
def interrupt(event, timeout=None):
    wait(event, timeout)
    threading.Event.wait = wait
    raise Terminated
server = types.SimpleNamespace(describe_models=lambda timeout_s: None)
readiness = Readiness(None, types.SimpleNamespace(current=server), print)
threading.Event.wait = interrupt
try:
    readiness.tell_ready()
except Terminated:
    print("stopped")
"""


def test_a_signal_that_comes_while_a_thread_starts_still_ends_the_process() -> None:
    """It came when a door asked for its server's state the first time; `offpath demo` stayed."""
    command = [sys.executable, "-c", ASKING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=MAX_S)
    assert (ended.stdout, ended.returncode) == ("stopped\n", 0), ended.stderr
