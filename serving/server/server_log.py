"""Reads a server's log: why it ended, and the errors since."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
    def is_shown(self) -> bool:
        """True if whoever runs the server should see the line: an error, or a worker's end."""
        has_ended = self.class_name == "WorkerThread" and "Retry worker: " in self.message
        return self.level in SHOWN_LEVELS or has_ended or self.is_of_sick_worker


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
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read_new(self) -> list[LogLine]:
        """Returns the complete lines written since the last call; works across rotation."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:
            self._offset = 0
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return _parse_lines(complete)
