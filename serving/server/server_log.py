"""Reads a server's log: why it ended, and the errors since."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from offpath.handler.announcer import WARNS
from offpath.serving.printable import printable

MAX_LINES = 25
# Layout of our log and of TorchServe's: time [LEVEL] thread logger - message.
LAYOUT = re.compile(
    r"^\S+ \[(?P<level>[A-Z]+) *\] (?P<thread>\S+) (?P<logger>\S+) - (?P<message>.*?) *$"
)
# Threads of one worker: W-9000-classifier_1.0, also with -stdout or -stderr.
WORKER_THREAD = re.compile(r"^W-\d+-")
# The last line of a traceback, with or without the exception's module.
EXCEPTION = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Exit)\b.*)")
# The handler's line before a worker with a broken model ends (handler/classifier.py).
SICK_WORKER = "so this worker must be replaced: "
SHOWN_LEVELS = ("ERROR", "FATAL")
# Lines of these loggers report what a client sent, never why the server ended.
CLIENT_LOGGERS = frozenset({"HttpRequestHandler", "NettyUtils", "ACCESS_LOG"})
SERVER_FAILURE = re.compile(
    r"Invalid configuration|Failed to bind|Unrecognized|Error: |Error occurred"
    r"|Exception|\[ERROR\]"
)
REMOVED = "was removed: its lines are shown only here, until a reload or restart begins another"


@dataclass(frozen=True)
class LogLine:
    """One line of a log; a line without the layout (a Java stack trace) has only a message."""

    level: str
    thread: str
    logger: str
    message: str

    @property
    def class_name(self) -> str:
        return self.logger.rpartition(".")[2]

    @property
    def worker(self) -> str | None:
        """The worker that the line is about, such as `W-9000-classifier_1.0`; None without one."""
        if not WORKER_THREAD.match(self.thread):
            return None
        return self.thread.removesuffix("-stdout").removesuffix("-stderr")

    @property
    def model(self) -> str:
        """NAME_VERSION of the worker's model; empty without a worker."""
        return WORKER_THREAD.sub("", self.worker or "")

    @property
    def is_of_sick_worker(self) -> bool:
        """True if a worker says that it ends because its model is broken."""
        return self.worker is not None and SICK_WORKER in self.message

    @property
    def is_warning(self) -> bool:
        """True if our handler says what it cannot do; TorchServe drops the level of such a line."""
        return self.worker is not None and self.message.startswith(WARNS)

    @property
    def is_shown(self) -> bool:
        """True if whoever runs the server should see the line: an error, or a worker's end."""
        has_ended = self.class_name == "WorkerThread" and "Retry worker: " in self.message
        is_of_handler = self.is_of_sick_worker or self.is_warning
        return self.level in SHOWN_LEVELS or has_ended or is_of_handler


def parse_line(text: str) -> LogLine:
    """Parses a log line and escapes control characters, which a client may have sent."""
    text = printable(text)
    match = LAYOUT.match(text)
    return LogLine(**match.groupdict()) if match else LogLine("", "", "", text)


def read_log(path: Path, start: int = 0) -> list[LogLine]:
    """Returns a log file's lines from byte `start` on; no lines if there is no such file."""
    if not path.is_file():
        return []
    return _parse_lines(path.read_bytes()[start:])


def _parse_lines(data: bytes) -> list[LogLine]:
    text = data.decode("utf-8", errors="replace").removesuffix("\n")
    # Not splitlines, which also splits at characters that a client may have sent.
    return [parse_line(line) for line in text.split("\n")] if text else []


def has_exception(lines: list[str]) -> bool:
    return any(map(EXCEPTION.match, lines))


def find_last_error(lines: list[str]) -> str:
    """Returns the last exception of a traceback, without its module; or else the last line."""
    errors = [match[1] for match in map(EXCEPTION.match, lines) if match]
    return [*lines[-1:], *errors][-1] if lines else "nothing was logged"


def find_server_failure(lines: list[LogLine]) -> list[str]:
    """Returns the lines that tell why the server ended; the last lines if none stands out."""
    lines = [line for line in lines if line.class_name not in CLIENT_LOGGERS]
    messages = [line.message for line in lines]
    for index, line in enumerate(lines):
        if line.level == "ERROR" or SERVER_FAILURE.search(line.message):
            return messages[index : index + MAX_LINES]
    return messages[-MAX_LINES:]


class LogFollower:
    """Reads what a log gets from now on, also after it was rotated or removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._begun = b""
        self._is_removed = False
        self._warned: set[str] = set()
        self._read()

    def read_new(self) -> list[LogLine]:
        """Returns the complete lines written since the last call, each warning of workers once."""
        data = self._begun + self._read()
        complete = data[: data.rfind(b"\n") + 1]
        self._begun = data[len(complete) :]
        lines = [line for line in _parse_lines(complete) if self._is_new(line)]
        was_removed, self._is_removed = self._is_removed, not self._path.exists()
        if self._file is not None and self._is_removed and not was_removed:
            lines.append(LogLine("ERROR", "", "offpath", f"{self._path} {REMOVED}"))
        return lines

    def _read(self) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            if self._file is None:
                self._file = open(self._path, "rb", buffering=0)
                self._close = weakref.finalize(self, self._file.close)
        if self._file is None:
            return b""
        status = os.fstat(self._file.fileno())
        if status.st_size < self._file.tell():
            self._file.seek(0)
        data = self._file.read()
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(self._path.stat(), status):
                self._close()
                self._file = None
                data += self._read()
        return data

    def _is_new(self, line: LogLine) -> bool:
        """Returns False for a warning that this worker or another has logged before."""
        # Subject and kind, without the value that a client has sent.
        kind = ": ".join(line.message.split(": ")[:3])
        is_known = line.is_warning and kind in self._warned
        self._warned |= {kind} if line.is_warning else set()
        return not is_known
