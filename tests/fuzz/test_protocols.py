"""Random input to the fork server."""

from __future__ import annotations

import json
import os
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offpath.serving.fork.fork_request import LENGTH, STREAMS, receive_request
from tests.guarantees import guarantee


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@guarantee(
    "The fork server's protocol",
    "serving/fork/fork_request.py",
    "            os.close(stream)",
    "            pass",
)
@given(st.binary(max_size=200), st.integers(-3, 3), st.booleans())
@example(json.dumps({"argv": [], "environment": {}, "folder": ""}).encode(), -1, True)
@example(b"[]", 0, True)
@example(b'{"argv": []}', 0, True)
@example(b"[" * 100_000, 0, True)
def test_a_launcher_that_is_cut_off_costs_its_own_request_alone(
    body: bytes, more: int, has_streams: bool
) -> None:
    before = count_descriptors()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        head = LENGTH.pack(max(0, len(body) + more))
        socket.send_fds(theirs, [head], [0] * (STREAMS if has_streams else 0))
        theirs.sendall(body)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError):
            receive_request(ours)
    assert count_descriptors() == before
