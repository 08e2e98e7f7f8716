"""Counts the requests that a server has not answered, with the kernel's help.

TorchServe's own count covers only its queue, not the batches in its workers. The kernel knows for
each connection when bytes were last received and sent. A connection that received bytes after it
last sent some waits for a reply. Structures: linux/inet_diag.h, sock_diag.h, tcp.h.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

POLL_S = 0.1
# A client may pause for a moment between a reply and its next request.
QUIET_POLLS = 3

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_DONE = 3
REQUEST_DUMP = 0x301
ESTABLISHED = 1 << 1
INET_DIAG_INFO = 2
# nlmsghdr: length, type, flags, sequence number, port.
HEADER = struct.Struct("=LHHLL")
# inet_diag_req_v2: family, protocol, wanted attribute, states; a dump leaves the address empty.
REQUEST = struct.Struct("=BBBxL48x")
# inet_diag_msg: the local port; the rest is skipped.
SOCKET = struct.Struct("!4xH66x")
ATTRIBUTE = struct.Struct("=HH")
# tcp_info: ms since data were last sent and received; bytes received.
INFO = struct.Struct("=44xL4xL72xQ")


def wait_until_answered(port: int, timeout_s: float) -> bool:
    """Waits until all requests to a TCP port of this machine are answered; False if time is up."""
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < QUIET_POLLS:
        if time.monotonic() > deadline:
            return False
        quiet = 0 if count_unanswered(port) else quiet + 1
        time.sleep(POLL_S)
    return True


def count_unanswered(port: int) -> int:
    """Counts the connections to a TCP port of this machine that wait for a reply.

    Within one tick of the kernel's clock (1 to 10 ms) the order of receiving and sending is
    unknown; such a connection is counted.

    Raises:
        OSError: the kernel does not list its connections.
    """
    return sum(
        received_bytes > 0 and received_ms <= sent_ms
        for sent_ms, received_ms, received_bytes in _ask(port)
    )


def _ask(port: int) -> Iterator[tuple[int, ...]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _dump(family):
            if SOCKET.unpack_from(message)[0] != port:
                continue
            position = SOCKET.size
            while position < len(message):
                length, kind = ATTRIBUTE.unpack_from(message, position)
                if kind == INET_DIAG_INFO:
                    yield INFO.unpack_from(message, position + ATTRIBUTE.size)
                position += _aligned(length)


def _dump(family: int) -> Iterator[bytes]:
    """Yields an inet_diag_msg with its attributes for each connection of this machine."""
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << INET_DIAG_INFO - 1, ESTABLISHED)
    length = HEADER.size + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(HEADER.pack(length, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
        while True:
            answer = kernel.recv(1 << 16)
            position = 0
            while position < len(answer):
                length, kind, *_ = HEADER.unpack_from(answer, position)
                if kind == NLMSG_DONE:
                    return
                if kind != SOCK_DIAG_BY_FAMILY:
                    raise OSError("the kernel does not list its connections")
                yield answer[position + HEADER.size : position + length]
                position += _aligned(length)


def _aligned(length: int) -> int:
    return length + 3 & ~3
