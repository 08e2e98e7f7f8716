"""Hostile clients, each kind in its own process: `python -m tests.support.attacks URL NAME`.

They connect from 127.0.0.2, so that limits per client tell them from the good clients.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from offpath.profiling.load.workload import load_workload
from tests.support.costly import MAX_BYTES, PALETTE, damaged_jpeg, png, progressive_jpeg
from tests.support.eventually import MAX_S

ADDRESS = ("127.0.0.2", 0)
TIMEOUT_S = 60.0
MAX_SENDING_S = 20.0


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client.

    Attributes:
        make: makes the request body.
        connections: open at the same time; each waits `pause_s` after an answer and sends again.
        path: used instead of the prediction's path; `{}` is the model's name.
        headers: sent in addition to Content-Length.
        sent_share: part of the body that is sent; the rest never comes and the connection stays.
    """

    make: Callable[[], bytes]
    connections: int = 4
    pause_s: float = 0.02
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    sent_share: float = 1.0


URL_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ATTACKS = {
    "broken forms": Attack(lambda: b"%zz=" + b"x" * 129, headers=URL_FORM),
    "JPEG of 16,000 scans": Attack(lambda: progressive_jpeg(1000, 16_000)),
    "20 MB of fill bytes": Attack(
        lambda: b"\xff\xd8" + b"\xff" * (MAX_BYTES - 2), connections=1, pause_s=0.5
    ),
    "explanations": Attack(lambda: progressive_jpeg(300), path="/explanations/{}"),
    "250 uploads stopped at 4 MB": Attack(
        lambda: bytes(8_000_000), connections=250, pause_s=60, sent_share=0.5
    ),
    "damaged JPEG": Attack(
        lambda: damaged_jpeg(progressive_jpeg(2600, 88)), connections=1, pause_s=2.0
    ),
    "PNG of 50 million pixels": Attack(
        lambda: png(7071, 7071, 8, PALETTE, 8, False), connections=1, pause_s=1.0
    ),
    # Granian alone has this path.
    "KServe requests of 100 images": Attack(
        lambda: b'{"instances": ["%b"]}'
        % b'", "'.join(100 * [base64.b64encode(load_workload("photos-55k").read()[0])]),
        connections=10,
        path="/v1/models/{}:predict",
    ),
}


def attack(url: str, name: str) -> None:
    """Attacks until the process is ended; prints one line when the attack has begun."""
    chosen, parts = ATTACKS[name], urlsplit(url)
    body = chosen.make()
    path = chosen.path.format(parts.path.rpartition("/")[2]) or parts.path
    sent = threading.Semaphore(0)
    for _ in range(chosen.connections):
        thread = threading.Thread(
            target=_send_on, args=(chosen, parts.netloc, path, body, sent), daemon=True
        )
        thread.start()
    if chosen.sent_share < 1:
        # A body still in transit does not occupy the server yet: wait until it has arrived.
        deadline = time.monotonic() + MAX_SENDING_S
        for _ in range(chosen.connections):
            sent.acquire(timeout=max(0.0, deadline - time.monotonic()))
    print("begun", flush=True)
    time.sleep(3600)


def _send_on(
    chosen: Attack, address: str, path: str, body: bytes, sent: threading.Semaphore
) -> None:
    while True:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S, source_address=ADDRESS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                _send(connection, chosen, path, body)
                sent.release()
                time.sleep(chosen.pause_s)
        connection.close()
        time.sleep(chosen.pause_s)


def _send(connection: http.client.HTTPConnection, chosen: Attack, path: str, body: bytes) -> None:
    if chosen.sent_share < 1:
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        connection.send(body[: int(len(body) * chosen.sent_share)])
        return
    connection.request("POST", path, body, chosen.headers)
    connection.getresponse().read()


def head_of(url: str, length: int) -> bytes:
    """Returns the header of a prediction request."""
    path = urlsplit(url).path
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def connect(url: str) -> socket.socket:
    """Opens a connection from the attackers' address."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), TIMEOUT_S, source_address=ADDRESS)


@contextmanager
def slow_upload(url: str, body: bytes) -> Iterator[Future[int]]:
    """Begins a request whose body comes to its end after the block; its result is the status."""
    is_over, has_begun = threading.Event(), threading.Event()

    def send() -> int:
        with connect(url) as connection:
            connection.sendall(head_of(url, len(body)))
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


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2])
