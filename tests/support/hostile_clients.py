"""Hostile and broken clients of a server, whatever it is, with and without a front door."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from tests.support.eventually import MAX_S, eventually
from tests.support.images import jpeg

PATH = "/predictions/near-free"
LARGE = jpeg(size=(2048, 1365))
# Of the JSON before the binary data of V2; spaces fill it up.
JSON_BYTES = 200


class Target(Protocol):
    """A server under attack: a `FrontProcess`, or one without a door, whose `bodies` are empty."""

    url: str
    bodies: Path

    def python_workers(self) -> list[int]: ...

    def nginx_workers(self) -> list[int]: ...


@dataclass(frozen=True)
class Form:
    """A form of request with one image.

    Attributes:
        path: its path, for the model `near-free`.
        wrap: makes a body of an image.
        headers: sent with it.
        fine: statuses that an image may get.
        bad: statuses that a body which is no image may get.
    """

    path: str
    wrap: Callable[[bytes], bytes]
    headers: dict[str, str] = field(default_factory=dict)
    fine: tuple[int, ...] = (200,)
    bad: tuple[int, ...] = (415,)

    @property
    def is_of_kserve(self) -> bool:
        return self.path != PATH

    @property
    def is_prediction(self) -> bool:
        return self.fine == (200,)

    def head(self, length: int) -> bytes:
        headers = {"Host": "localhost", "Content-Length": length, **self.headers}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([f"POST {self.path} HTTP/1.1", *lines, "", ""]).encode()

    def request(self, image: bytes) -> bytes:
        """Returns a whole request."""
        body = self.wrap(image)
        return self.head(len(body)) + body

    def post(self, url: str, image: bytes, **headers: str) -> httpx.Response:
        """Sends an image to a server's base URL."""
        headers, content = {**self.headers, **headers}, self.wrap(image)
        return httpx.post(url + self.path, content=content, headers=headers, timeout=MAX_S)


def wrap_v1(image: bytes) -> bytes:
    return b'{"instances": [{"data": "%b"}]}' % base64.b64encode(image)


def wrap_v2(image: bytes) -> bytes:
    parameters = b'{"binary_data_size": %d}' % (len(image) + 4)
    tensor = b'{"name": "x", "shape": [1], "datatype": "BYTES", "parameters": %b}' % parameters
    text = b'{"inputs": [%b]}' % tensor
    return text.ljust(JSON_BYTES) + len(image).to_bytes(4, "little") + image


OF_TORCHSERVE = Form(PATH, bytes)
LENGTH = {"Inference-Header-Content-Length": str(JSON_BYTES)}
FORMS = {
    "predictions": OF_TORCHSERVE,
    "v1": Form("/v1/models/near-free:predict", wrap_v1),
    # Closed at some doors, and otherwise open for a quarter of a worker's time.
    "v1-explain": Form(
        "/v1/models/near-free:explain", wrap_v1, {}, (200, 403, 429), (403, 415, 429)
    ),
    "v2": Form("/v2/models/near-free/infer", wrap_v2, LENGTH),
}


def connect(door: Target) -> socket.socket:
    url = httpx.URL(door.url)
    connection = socket.create_connection((url.host, url.port))
    connection.settimeout(MAX_S)
    return connection


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def leave(door: Target, form: Form, image: bytes) -> None:
    """Forty clients send an image and leave."""
    for _ in range(40):
        with connect(door) as connection:
            connection.sendall(form.request(image))


def check_cut_off_bodies(door: Target, form: Form) -> None:
    body = form.wrap(LARGE)
    for _ in range(20):
        with connect(door) as connection:
            connection.sendall(form.head(len(body)) + body[: len(body) // 2])
    eventually(lambda: not list(door.bodies.iterdir()))
    assert form.post(door.url, LARGE).status_code in form.fine


def check_clients_that_leave(door: Target, form: Form) -> None:
    workers = door.python_workers()
    leave(door, form, LARGE)
    assert form.post(door.url, LARGE).status_code in form.fine
    assert door.python_workers() == workers
    eventually(lambda: not list(door.bodies.iterdir()))


def check_pipelining(door: Target, form: Form) -> None:
    with connect(door) as connection:
        connection.sendall((form.request(LARGE) + form.request(b"no image")) * 4)
        received = b""
        while received.count(b"HTTP/1.1 ") < 8 or not received.endswith(b"}"):
            part = connection.recv(65536)
            if not part:
                break
            received += part
    replies = received.split(b"HTTP/1.1")[1:]
    statuses = [status_of(reply) for reply in replies]
    # Without a door, busy workers close some connections after an answer.
    assert len(statuses) == 8 or b"connection: close" in replies[-1], statuses
    assert set(statuses[::2]) <= {*form.fine}, statuses
    assert set(statuses[1::2]) <= {*form.bad}, statuses


CHECKS = [check_cut_off_bodies, check_clients_that_leave, check_pipelining]
