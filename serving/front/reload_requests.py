"""The Unix socket by which `offpath reload` and `offpath canary` reach a front door.

Each connection is one request in JSON. One with a `server` asks for a reload, and its reply is the
outcome of a reload that began after the request. Any other one is a change of canaries and shadows.
The socket is in the door's own folder, which ends with it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError

# In the door's folder, which only its user can enter.
SOCKET = "reload.sock"
BACKLOG = 64
# A command sends its request as soon as it has connected.
READ_TIMEOUT_S = 1.0
# Of a request, in pieces of PIECE_BYTES.
MAX_PIECES, PIECE_BYTES = 256, 4096
CHANGES = {"canary", "shadow", "stop"}
# A server that is not READY by then will hardly be. A change waits for a reload that is under way.
TIMEOUT_S = 600.0


class ReloadRequests:
    """The door's end of the socket.

    Args:
        change: changes canaries and shadows, and returns the reply.
    """

    def __init__(self, change: Callable[..., dict[str, list[str]]] = dict) -> None:
        self._change = change
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        # With the kind of server that is asked for; None takes the kind that runs.
        self._waiting: list[tuple[socket.socket, str | None]] = []
        self._begun: list[socket.socket] = []

    def open(self, folder: Path) -> None:
        """Listens in a folder, for this user; raises ExpectedError if that cannot hold a socket."""
        try:
            self._listener.bind(str(folder / SOCKET))
            (folder / SOCKET).chmod(0o600)
        except OSError as error:
            raise ExpectedError(
                f"cannot make the socket of `offpath reload` in {folder}: {error.strerror}"
            ) from error
        self._listener.listen(BACKLOG)

    def list_sockets(self) -> list[Path]:
        """Returns the path of the socket, unless none could be made."""
        return [Path(name)] if (name := self._listener.getsockname()) else []

    def accept_new(self) -> bool:
        """Accepts new requests, and returns True if any waits for a reload to begin."""
        # No more are there, the socket is not open, or no descriptor is left.
        with contextlib.suppress(OSError):
            while True:
                self._receive(self._listener.accept()[0])
        return bool(self._waiting)

    def begin(self) -> str | None:
        """Assigns the requests that wait to the reload that begins now.

        Those that ask for another kind of server than the first one wait for the next reload.

        Returns:
            the kind of server that is asked for, or None.
        """
        waiting, self._waiting = self._waiting, []
        server = next((kind for _, kind in waiting if kind), None)
        for connection, kind in waiting:
            if kind in (None, server):
                self._begun.append(connection)
            else:
                self._waiting.append((connection, kind))
        return server

    def end(self, failure: str | None) -> None:
        """Answers the requests of the reload that has ended; `failure` is None on success."""
        for connection in self._begun:
            _send(connection, {"failure": failure})
        self._begun = []

    def close(self) -> None:
        """Ends all requests without a reply. Safe to call twice."""
        waiting = [connection for connection, _ in self._waiting]
        for connection in (self._listener, *waiting, *self._begun):
            connection.close()

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(READ_TIMEOUT_S)
        reply: dict[str, Any]
        try:
            request = _read_request(_read_all(connection))
            if "server" in request:
                self._waiting.append((connection, request["server"]))
                return
            reply = {"failure": None, **self._change(**request)}
        except (ExpectedError, OSError) as error:
            reply = {"failure": str(error)}
        _send(connection, reply)


def ask_door(folder: Path, request: Mapping[str, object]) -> dict[str, Any]:
    """Has a running front door replace its server, or change its canaries, and waits until it has.

    Args:
        folder: the door's folder.
        request: `{"server": KIND}`, in which None stands for the kind that runs; or the arguments
            of `DoorSettings.change_splits`, as texts.

    Returns:
        what is in force after a change: `canary` and `shadow`, as texts.

    Raises:
        ExpectedError: no door runs, it refuses the change, the new server was not let in, or the
            time is up.
    """
    what = "reload" if "server" in request else "change"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(folder / SOCKET))
        except OSError as error:
            raise ExpectedError(
                f"the `offpath serve --front` with the folder {folder} takes no requests any more "
                f"({error.strerror})"
            ) from error
        try:
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            reply = _read_all(connection)
        except TimeoutError as error:
            raise ExpectedError(
                f"the {what} has not ended after {TIMEOUT_S:.0f} s; it goes on without this command"
            ) from error
        except OSError:
            reply = b""
    if not reply:
        raise ExpectedError(f"`offpath serve` ended during the {what}")
    content: dict[str, Any] = json.loads(reply)
    failure = content.pop("failure")
    if failure is not None:
        before = "the new server did not start, the old server continues: "
        raise ExpectedError(f"{before if what == 'reload' else ''}{failure}")
    return content


def _read_request(body: bytes) -> dict[str, Any]:
    """Reads a reload, `{"server": KIND or null}`, or a change of CHANGES, each a list of texts.

    Raises:
        ExpectedError: the request is neither, such as that of another version's command.
    """
    request: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        request = json.loads(body)
    if isinstance(request, dict):
        if request.keys() == {"server"} and isinstance(request["server"], (str, type(None))):
            return request
        texts = [text for value in request.values() if isinstance(value, list) for text in value]
        are_lists = all(isinstance(value, list) for value in request.values())
        if request.keys() <= CHANGES and are_lists and all(isinstance(one, str) for one in texts):
            return request
    raise ExpectedError(
        f"the door cannot read the request {body[:80]!r}; use the command of the version of "
        "offpath that serves"
    )


def _send(connection: socket.socket, reply: dict[str, Any]) -> None:
    # A command that was interrupted does not wait for its reply.
    with connection, contextlib.suppress(OSError):
        connection.sendall(json.dumps(reply).encode())


def _read_all(connection: socket.socket) -> bytes:
    return b"".join(islice(iter(lambda: connection.recv(PIECE_BYTES), b""), MAX_PIECES))
