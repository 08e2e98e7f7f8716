"""What TorchServe's log files say about a start that fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# ours; stock. Both also have the console's output.
SERVER_LOG = "torchserve.log"
CONSOLE_LOG = "console.log"
MAX_LINES = 25
# ts/model_service_worker.py; WorkerThread.java; WorkLoadManager/ModelServer.java.
WORKER_DIED = re.compile(
    r"Backend worker process died\.|Backend worker did not receive connection"
    r"|Backend worker error|Load model failed"
)
MODEL_REFUSED = re.compile(r"Failed to load model: ")
SERVER_FAILED = re.compile(
    r"Invalid configuration|Failed to bind|Address already in use|Unrecognized option"
    r"|Error: Could not|Could not (create|reserve)|Exception|\[ERROR\]"
)
# The prefix that the log layouts put before a worker's own words.
LAYOUT = re.compile(r"^\S+ \[[A-Z]+ *\] \S+ (?:\S+) - ")


def read_log_lines(paths: Iterable[Path]) -> list[str]:
    """Returns the lines of those log files that exist, file by file."""
    lines: list[str] = []
    for path in paths:
        if path.is_file():
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines


def find_load_failure(lines: list[str]) -> list[str] | None:
    """Returns the lines that tell why a worker or a model did not load; None if all is well.

    A worker's own traceback is preferred to what the server says about it.
    """
    for index, line in enumerate(lines):
        if WORKER_DIED.search(line) or MODEL_REFUSED.search(line):
            return _excerpt(lines, index)
    return None


def find_server_failure(lines: list[str]) -> list[str]:
    """Returns the lines that tell why the server itself ended; the last ones if none stands out."""
    for index, line in enumerate(lines):
        if SERVER_FAILED.search(line):
            return _excerpt(lines, index)
    return lines[-MAX_LINES:]


def _excerpt(lines: list[str], start: int) -> list[str]:
    """Up to MAX_LINES from `start`, without the log layout: the end of a traceback names the cause."""
    return [LAYOUT.sub("", line) for line in lines[start : start + MAX_LINES]]
