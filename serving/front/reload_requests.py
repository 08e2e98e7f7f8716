"""The Unix socket by which `offpath reload` and `offpath canary` reach a front door.

Each connection is one request. An empty one asks for a reload, and its answer is the outcome of a
reload that began after the request. Any other one is a change of canaries and shadows, in JSON.
The socket names no process: once the door has ended, nobody is reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError

# In the folder of the door's logs.
SOCKET = "reload.sock"
BACKLOG = 64
# A command sends its request as soon as it has connected.
READ_TIMEOUT_S = 1.0
# A change waits for a reload that is under way.
CHANGE_TIMEOUT_S = 600.0


class ReloadRequests:
    """The door's end of the socket.

    Args:
        change: changes canaries and shadows, and returns the answer.
    """

    def __init__(self, change: Callable[..., dict[str, list[str]]] = dict) -> None:
        self._change = change
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._waiting: list[socket.socket] = []
        self._begun: list[socket.socket] = []
        self._path: Path | None = None
        self._file = (0, 0)

    def open(self, folder: Path) -> None:
        """Listens in a folder. Only the same user can connect.

        Raises:
            ExpectedError: the folder cannot hold a socket.
        """
        try:
            with _short_path(folder) as path:
                path.unlink(missing_ok=True)
                self._listener.bind(str(path))
                path.chmod(0o600)
                self._file = _identify(path)
        except OSError as error:
            raise ExpectedError(
                f"cannot make the socket of `offpath reload` in {folder}: {error.strerror}"
            ) from error
        self._path = folder / SOCKET
        self._listener.listen(BACKLOG)

    def are_waiting(self) -> bool:
        """Accepts new requests and tells whether any waits for a reload to begin."""
        # No more are there, the socket is not open, or no descriptor is left.
        with contextlib.suppress(OSError):
            while True:
                self._receive(self._listener.accept()[0])
        return bool(self._waiting)

    def begin(self) -> None:
        """Assigns the requests that wait to the reload that begins now."""
        self._begun, self._waiting = self._waiting, []

    def end(self, failure: str | None) -> None:
        """Answers the requests of the reload that has ended; `failure` is None on success."""
        for connection in self._begun:
            _answer(connection, {"failure": failure})
        self._begun = []

    def close(self) -> None:
        """Ends all requests without an answer and removes the socket. Safe to call twice."""
        for connection in (self._listener, *self._waiting, *self._begun):
            connection.close()
        with contextlib.suppress(OSError):
            # Another door may have taken the folder over.
            if self._path is not None and _identify(self._path) == self._file:
                self._path.unlink()

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(READ_TIMEOUT_S)
        try:
            request = _read_all(connection)
        except OSError:
            connection.close()
            return
        if not request:
            self._waiting.append(connection)
            return
        answer: dict[str, Any]
        try:
            answer = {"failure": None, **self._change(**json.loads(request))}
        except ExpectedError as error:
            answer = {"failure": str(error)}
        _answer(connection, answer)


def request_reload(folder: Path, timeout_s: float) -> None:
    """Has a running front door replace its server, and waits until it has.

    Raises:
        ExpectedError: no door runs, the new server was not let in, or the time is up.
    """
    failure = _ask(folder, b"", timeout_s, "reload")["failure"]
    if failure is not None:
        raise ExpectedError(f"the new server did not start, the old server continues: {failure}")


def request_change(folder: Path, change: dict[str, list[str]]) -> dict[str, list[str]]:
    """Has a running front door change its canaries and shadows.

    Args:
        folder: the door's folder of logs.
        change: the arguments of `DoorSettings.change_splits`, as texts.

    Returns:
        what is in force then: `canary` and `shadow`, as texts.

    Raises:
        ExpectedError: no door runs, or it refuses the change.
    """
    answer = _ask(folder, json.dumps(change).encode(), CHANGE_TIMEOUT_S, "change")
    failure = answer.pop("failure")
    if failure is not None:
        raise ExpectedError(failure)
    return answer


def _ask(folder: Path, request: bytes, timeout_s: float, what: str) -> dict[str, Any]:
    """Sends a request and returns its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with _short_path(folder) as path:
                connection.connect(str(path))
        except OSError as error:
            raise ExpectedError(
                f"no `offpath serve --front` runs that you can reach through "
                f"{folder / SOCKET} ({error.strerror}); name the server's --port or --log-dir"
            ) from error
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = _read_all(connection)
        except TimeoutError as error:
            raise ExpectedError(
                f"the {what} has not ended after {timeout_s:.0f} s; it goes on without this command"
            ) from error
        except OSError:
            answer = b""
    if not answer:
        raise ExpectedError(f"`offpath serve` ended during the {what}")
    content: dict[str, Any] = json.loads(answer)
    return content


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    # A command that was interrupted does not wait for its answer.
    with connection, contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode())


def _read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(4096), b""))


def _identify(path: Path) -> tuple[int, int]:
    """Returns a file's number, which a later file may get again, and its time."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[Path]:
    """Yields a path of the socket in a folder; the kernel accepts at most 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
