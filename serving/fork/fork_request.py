"""The message from a launcher to the fork server over a Unix socket: what to run, and how.

A launcher runs for each worker, so this module imports as little as it can.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from dataclasses import asdict, dataclass

LENGTH = struct.Struct("!I")
# The worker's standard streams, which are TorchServe's pipes.
STREAMS = 3


@dataclass(frozen=True)
class ForkRequest:
    """A worker to start, in the environment and the folder that TorchServe set for it.

    `argv` is the script with its arguments.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str

    def send(self, connection: socket.socket) -> None:
        """Sends the request together with this process's standard streams."""
        body = json.dumps(asdict(self)).encode()
        socket.send_fds(connection, [LENGTH.pack(len(body))], list(range(STREAMS)))
        connection.sendall(body)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Receives a request and the worker's standard streams, which the caller must close.

    Raises:
        OSError: the launcher ended in the middle of the request, or there are too few descriptors;
            no stream is left open.
    """
    head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, STREAMS)
    try:
        request = _read_request(connection, head)
        if len(streams) < STREAMS:  # the kernel drops those that find no place
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return request, streams
    except OSError:
        for stream in streams:
            os.close(stream)
        raise


def _read_request(connection: socket.socket, head: bytes) -> ForkRequest:
    if len(head) != LENGTH.size:
        raise ConnectionError("the launcher ended before it sent a request")
    with connection.makefile("rb") as file:
        body = file.read(*LENGTH.unpack(head))
    try:
        return ForkRequest(**json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConnectionError(f"not a launcher's request: {error}") from error
