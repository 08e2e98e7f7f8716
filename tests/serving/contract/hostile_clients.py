"""Requests in every form, which hostile and broken clients send in part or too slowly."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from tests.support.eventually import MAX_S

PATH = "/predictions/near-free"
# Of the JSON before the binary data of V2; spaces fill it up.
JSON_BYTES = 200


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
    wrap: Callable[[bytes], bytes] = bytes
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


OF_TORCHSERVE = Form(PATH)
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


def connect(url: str) -> socket.socket:
    """Opens a connection to a server."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), MAX_S)


@contextmanager
def slow_upload(url: str, body: bytes) -> Iterator[Future[int]]:
    """Begins a request whose body comes to its end after the block; its result is the status."""
    is_over, has_begun = threading.Event(), threading.Event()

    def send() -> int:
        with connect(url) as connection:
            connection.sendall(Form(urlsplit(url).path).head(len(body)))
            for idx in range(len(body)):
                connection.sendall(body[idx : idx + 1])
                has_begun.set()
                if is_over.wait(0.5):
                    connection.sendall(body[idx + 1 :])
                    return int(connection.recv(1 << 16).split()[1])
        raise AssertionError("the whole body was sent")

    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(send)
        assert has_begun.wait(MAX_S)
        try:
            yield upload
        finally:
            is_over.set()
