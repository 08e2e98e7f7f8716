"""Buffered reading of TorchServe's worker protocol.

ts/protocol/otf_message_handler.py asks the socket for every 4-byte length, name and header value by
a call of its own, some 70 for a request, and lets each payload grow piece by piece. It has no place
for another reader, so its two reading functions are replaced, in this worker's process only. Where
they are not the ones this was written for, nothing is replaced and the log says so.
"""

from __future__ import annotations

import inspect
import logging
import socket
import struct
import sys
from types import ModuleType

logger = logging.getLogger(__name__)

# What one call asks of the socket when less than this is missing.
BUFFER_BYTES = 64 * 1024
INT = struct.Struct("!i")
# What is replaced, with its parameters.
READERS = {"_retrieve_buffer": ["conn", "length"], "_retrieve_int": ["conn"]}


class BufferedReader:
    """Reads one connection: a worker has a single one, to the front end that started it."""

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def read(self, conn: socket.socket, length: int) -> bytearray:
        """Returns the next `length` bytes.

        Raises:
            SystemExit: the front end is gone, which is how TorchServe's own reader ends a worker.
        """
        ready = self._end - self._start
        if length <= ready:
            start, self._start = self._start, self._start + length
            return self._buffer[start : self._start]
        data = bytearray(max(0, length))
        rest = memoryview(data)
        rest[:ready] = self._view[self._start : self._end]
        rest = rest[ready:]
        while len(rest) >= BUFFER_BYTES:
            rest = rest[_receive(conn, rest) :]
        self._fill(conn, len(rest))
        rest[:] = self._view[: len(rest)]
        self._start = len(rest)
        return data

    def read_int(self, conn: socket.socket) -> int:
        """Returns the next four bytes as an integer."""
        if self._end - self._start < INT.size:
            value: int = INT.unpack(self.read(conn, INT.size))[0]
            return value
        (value,) = INT.unpack_from(self._buffer, self._start)
        self._start += INT.size
        return value

    def _fill(self, conn: socket.socket, wanted: int) -> None:
        """Refills the empty buffer with at least `wanted` bytes, and what came with them."""
        self._start = self._end = 0
        while self._end < wanted:
            self._end += _receive(conn, self._view[self._end :])


def _receive(conn: socket.socket, into: memoryview) -> int:
    count = conn.recv_into(into)
    if not count:
        logger.info("front end disconnected")
        sys.exit(0)
    return count


def install_buffered_reader(protocol: ModuleType) -> bool:
    """Replaces the reading functions of `ts.protocol.otf_message_handler`; call between messages.

    Returns:
        False where the module is not as expected; it is left alone then.
    """
    for name, parameters in READERS.items():
        function = getattr(protocol, name, None)
        if isinstance(getattr(function, "__self__", None), BufferedReader):
            return True  # by an earlier handler of this process
        if not inspect.isfunction(function):
            logger.warning(
                "TorchServe has no %s: its protocol is read unbuffered", name
            )
            return False
        if list(inspect.signature(function).parameters) != parameters:
            logger.warning(
                "TorchServe's %s differs: its protocol is read unbuffered", name
            )
            return False
    reader = BufferedReader()
    for name, method in zip(READERS, (reader.read, reader.read_int)):
        setattr(protocol, name, method)
    return True
