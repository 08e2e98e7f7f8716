"""Hostile clients, each kind in its own process: `python -m tests.support.attacks URL NAME`.

They connect from 127.0.0.2, so that limits per client tell them from the good clients.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import resource
import socket
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from offpath.profiling.load.workload import load_workload
from tests.support.costly import (
    COSTLY,
    MAX_BYTES,
    PALETTE,
    make_tiff,
    png,
    progressive_jpeg,
)
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
    "junk": Attack(lambda: b"\x00junk" * 4000),
    "JPEG of 16,000 scans": Attack(lambda: progressive_jpeg(1000, 16_000)),
    "20 MB of fill bytes": Attack(
        lambda: b"\xff\xd8" + b"\xff" * (MAX_BYTES - 2), connections=1, pause_s=0.5
    ),
    "bodies over the limit": Attack(lambda: bytes(34 * 2**20), connections=1, pause_s=0.5),
    "explanations": Attack(lambda: progressive_jpeg(300), path="/explanations/{}"),
    "explain, describe as headers": Attack(
        lambda: b"junk", headers={"explain": "True", "describe": "True"}
    ),
    "200 uploads stopped half-way": Attack(
        lambda: bytes(1_000_000), connections=200, pause_s=60, sent_share=0.5
    ),
    "250 uploads stopped at 4 MB": Attack(
        lambda: bytes(8_000_000), connections=250, pause_s=60, sent_share=0.5
    ),
    # Two readers of one file: Pillow skips a tag of type 17, and libtiff decodes by it.
    "TIFF with a tag twice": Attack(
        lambda: make_tiff(zlib.compress(bytes(10**6)), strips=100, first=[(279, 17, [10**6] * 100)])
    ),
    "form of percent signs": Attack(
        lambda: b"data=" + b"%" * (8 * 2**20), connections=1, pause_s=0.5, headers=URL_FORM
    ),
    "damaged JPEG": Attack(COSTLY["JPEG"]["damaged, many scans"], connections=1, pause_s=2.0),
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


HALF_HEADERS = 8400
UPLOADS = 32
UPLOAD_BYTES = 20_000_000


def head_of(url: str, length: int) -> bytes:
    """Returns the header of a prediction request."""
    path = urlsplit(url).path
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def connect(url: str) -> socket.socket:
    """Opens a connection from the attackers' address."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), TIMEOUT_S, source_address=ADDRESS)


def send_and_leave(url: str, times: int) -> None:
    """Sends a PNG of 50 million pixels on each of two connections at a time, and resets them."""
    body = png(7071, 7071, 8, PALETTE, 8, False)
    head = head_of(url, len(body))
    for _ in range(times // 2):
        pair = [connect(url), connect(url)]
        for connection in pair:
            connection.sendall(head + body)
        time.sleep(0.02)  # until nginx has read the body
        for connection in pair:
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            connection.close()


def send_half_headers(url: str) -> None:
    """Keeps connections open whose header never ends; opens each again before it times out."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: deque[socket.socket] = deque()
    while True:
        for _ in range(HALF_HEADERS):
            with contextlib.suppress(OSError):
                held.append(connect(url))
                held[-1].sendall(b"POST /predictions/x HTTP/1.1\r\nHost:")
            if len(held) > HALF_HEADERS:
                held.popleft().close()
        print("begun", flush=True)
        time.sleep(3)


def upload_for_ever(url: str) -> None:
    """Uploads all but 2 kB of large bodies, and then a byte every five seconds."""
    head = head_of(url, UPLOAD_BYTES)

    def upload() -> None:
        while True:
            with contextlib.suppress(OSError), connect(url) as connection:
                connection.sendall(head + bytes(UPLOAD_BYTES - 2000))
                while True:
                    time.sleep(5)
                    connection.sendall(b".")
            time.sleep(0.5)

    for _ in range(UPLOADS):
        threading.Thread(target=upload, daemon=True).start()
    time.sleep(5)
    print("begun", flush=True)
    time.sleep(3600)


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


# They last until the process is ended; `attacking` of tests/reliability starts them by name.
HELD = {"half headers": send_half_headers, "endless uploads": upload_for_ever}

if __name__ == "__main__":
    HELD.get(sys.argv[2], lambda url: attack(url, sys.argv[2]))(sys.argv[1])
