"""What a worker's launcher tells the fork server, over a Unix socket: what to run and with what.

The launcher runs as TorchServe's Python, once a worker: it imports as little as it can.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import asdict, dataclass

LENGTH = struct.Struct("!I")
# The worker's standard streams: TorchServe's pipes.
STREAMS = 3


@dataclass(frozen=True)
class ForkRequest:
    """A worker to be started.

    Attributes:
        argv: the script and its arguments.
        environment, folder: as TorchServe set them for this worker.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str

    def send(self, connection: socket.socket) -> None:
        """Sends it with this process's standard streams."""
        body = json.dumps(asdict(self)).encode()
        socket.send_fds(connection, [LENGTH.pack(len(body))], list(range(STREAMS)))
        connection.sendall(body)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """A request and the worker's standard streams, which are the caller's to close.

    Raises:
        OSError: the launcher ended in the middle of it; nothing is left open.
    """
    head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, STREAMS)
    try:
        return _read_request(connection, head), streams
    except OSError:
        for stream in streams:
            os.close(stream)
        raise


def _read_request(connection: socket.socket, head: bytes) -> ForkRequest:
    if len(head) != LENGTH.size:
        raise ConnectionError("the launcher ended before it said anything")
    with connection.makefile("rb") as file:
        body = file.read(*LENGTH.unpack(head))
    try:
        return ForkRequest(**json.loads(body))
    except (ValueError, TypeError) as error:
        raise ConnectionError(f"not what a launcher says: {error}") from error
