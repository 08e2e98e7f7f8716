from __future__ import annotations

import importlib.util
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
from ts.protocol import otf_message_handler

from offpath.handler.protocol_reader import (
    BUFFER_BYTES,
    BufferedReader,
    install_buffered_reader,
)


@pytest.fixture
def protocol() -> ModuleType:
    """A copy of TorchServe's module: the tests of one process must not share a patched one."""
    spec = importlib.util.find_spec(otf_message_handler.__name__)
    assert spec and spec.loader
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def field(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


END = struct.pack("!i", -1)


def encode_batch(bodies: list[bytes]) -> bytes:
    """An inference message as the front end writes it: OtfMessage in TorchServe's Java."""
    message = b"I"
    for index, body in enumerate(bodies):
        message += field(f"request-{index}".encode())
        message += field(b"content-type") + field(b"image/jpeg") + END
        message += field(b"body") + field(b"image/jpeg") + field(body) + END
    return message + END


def send_in_pieces(end: socket.socket, message: bytes, seed: int) -> threading.Thread:
    draw = random.Random(seed)

    def send() -> None:
        start = 0
        while start < len(message):
            stop = start + draw.choice([1, 3, 700, 9_000, 70_000, 400_000])
            end.sendall(message[start:stop])
            start = stop

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("seed", range(5))
def test_messages_arrive_whole_however_they_are_cut(
    protocol: ModuleType,
    sockets: tuple[socket.socket, socket.socket],
    seed: int,
) -> None:
    draw = random.Random(seed)
    sizes = [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 1_200_000, 17]
    draw.shuffle(sizes)
    bodies = [draw.randbytes(size) for size in sizes]
    assert install_buffered_reader(protocol)
    assert install_buffered_reader(protocol)  # a second time changes nothing
    sender = send_in_pieces(sockets[0], encode_batch(bodies) * 3, seed)
    for _ in range(3):
        command, batch = protocol.retrieve_msg(sockets[1])
        assert command == b"I"
        assert [row["parameters"][0]["value"] for row in batch] == bodies
        assert batch[0]["requestId"] == b"request-0"
        assert batch[0]["headers"] == [
            {"name": b"content-type", "value": b"image/jpeg"}
        ]
        assert all(type(row["parameters"][0]["value"]) is bytearray for row in batch)
    sender.join()


def test_several_fields_cost_one_system_call(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    class Counting:
        calls = 0

        def recv_into(self, view: memoryview) -> int:
            self.calls += 1
            return sockets[1].recv_into(view)

    connection = Counting()
    reader = BufferedReader()
    sockets[0].sendall(encode_batch([b"x" * 1000]))
    assert reader.read(connection, 1) == b"I"  # type: ignore[arg-type]
    length = reader.read_int(connection)  # type: ignore[arg-type]
    assert reader.read(connection, length) == b"request-0"  # type: ignore[arg-type]
    assert connection.calls == 1


def test_worker_ends_when_the_front_end_is_gone(
    protocol: ModuleType, sockets: tuple[socket.socket, socket.socket]
) -> None:
    install_buffered_reader(protocol)
    sockets[0].sendall(b"I" + struct.pack("!i", 36) + b"half a requ")
    sockets[0].close()
    with pytest.raises(SystemExit):
        protocol.retrieve_msg(sockets[1])


def test_unknown_protocol_module_is_left_alone(
    protocol: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    def other(conn: socket.socket, length: int, timeout_s: float) -> bytes:
        return b""

    protocol._retrieve_buffer = other  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        assert not install_buffered_reader(protocol)
    assert protocol._retrieve_buffer is other  # type: ignore[attr-defined]
    assert "read unbuffered" in caplog.text
