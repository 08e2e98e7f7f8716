"""Random input to a worker through TorchServe's protocol, and to the fork server."""

from __future__ import annotations

import json
import os
import socket
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ts.protocol.otf_message_handler import PREDICT_MSG, retrieve_msg
from ts.service import Service

from offpath.handler.errors import ItemError
from offpath.handler.request.body_from_front_door import DoorBodies
from offpath.handler.request.payload import read_payload
from offpath.serving.fork.fork_request import LENGTH, STREAMS, receive_request
from tests.support.guarantees import guarantee

END = struct.pack("!i", -1)
LIMIT = 10_000


class Connection:
    """Bytes that arrive in pieces, as from a socket."""

    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece = data, piece

    def recv(self, length: int) -> bytes:
        taken = min(length, self._piece)
        part, self._data = self._data[:taken], self._data[taken:]
        return part


def frame(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


# Java sends the names of fields and headers as UTF-8.
NAMES = st.sampled_from(
    ["data", "body", "X-Offpath-Body", "X-Offpath-Key", "describe", "explain", ""]
) | st.text(max_size=12)
TEXTS = st.text(max_size=40).map(str.encode)
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.tuples(NAMES, TEXTS), max_size=4),
        st.lists(st.tuples(NAMES, TEXTS, st.binary(max_size=80)), max_size=4),
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> DoorBodies:
    folder = tmp_path_factory.mktemp("bodies")
    folder.chmod(0o700)
    return DoorBodies(str(folder), "0" * 64)


@guarantee("The workers' and the fork server's protocols")
@given(requests=REQUESTS, piece=st.integers(1, 50))
def test_any_request_comes_through_the_workers_protocol_as_it_was_sent(
    door: DoorBodies,
    requests: list[tuple[list[tuple[str, bytes]], list[tuple[str, bytes, bytes]]]],
    piece: int,
) -> None:
    message = PREDICT_MSG
    for headers, fields in requests:
        message += frame(b"an-id")
        for name, text in headers:
            message += frame(name.encode()) + frame(text)
        message += END
        for name, kind, body in fields:
            message += frame(name.encode()) + frame(b"x/" + kind) + frame(body)
        message += END

    _, batch = retrieve_msg(Connection(message + END, piece))
    processors, rows, _ = Service.retrieve_data_for_inference(batch)

    assert rows == [{name: body for name, _, body in fields} for _, fields in requests]
    for processor, row in zip(processors, rows, strict=True):
        assert not door.has_sent(processor.get_request_properties())
        try:
            assert 0 < len(read_payload(row, LIMIT)) <= LIMIT
        except ItemError as error:
            assert 400 <= error.status < 500


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@guarantee(
    "The workers' and the fork server's protocols",
    "serving/fork/fork_request.py",
    "            os.close(stream)",
    "            pass",
)
@given(st.binary(max_size=200), st.integers(-3, 3), st.booleans())
@example(json.dumps({"argv": [], "environment": {}, "folder": ""}).encode(), -1, True)
@example(b"[]", 0, True)
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
