"""Hostile and broken clients of the front door."""

from __future__ import annotations

import contextlib
import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import psutil
import pytest

from tests.fuzz.costly_requests import PALETTE, png
from tests.support.eventually import MOST_S, eventually
from tests.support.front import FrontProcess, read_counts
from tests.support.images import jpeg

pytestmark = pytest.mark.server

PATH = "/predictions/near-free"
LARGE = jpeg(size=(2048, 1365))
RANDOM_REQUESTS = 300
TIMED_OUT = ("408", "RequestTimeout")


def connect(door: FrontProcess) -> socket.socket:
    url = httpx.URL(door.url)
    connection = socket.create_connection((url.host, url.port))
    connection.settimeout(MOST_S)
    return connection


def head_of(length: int, *lines: str) -> bytes:
    head = [f"POST {PATH} HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("spelling", ["X-Offpath-{}", "x-offpath-{}", "X-OFFPATH-{}"])
@pytest.mark.parametrize("body", [b"small: no image", bytes(600_000)])
def test_internal_headers_of_a_client_are_ignored(
    door: FrontProcess, spelling: str, body: bytes
) -> None:
    planted = door.bodies.parent / "planted-image"
    planted.write_bytes(LARGE)
    (door.bodies / "77").write_bytes(LARGE)
    try:
        for name in (f"{door.bodies}/77", f"{door.bodies}/../{planted.name}", "77"):
            sent = {
                spelling.format("Body"): name,
                spelling.format("Key"): "0" * 64,
                spelling.format("Type"): "multipart/form-data; boundary=x",
                spelling.format("Id"): "my-id",
                "describe": "True",
                "explain": "True",
            }
            answer = httpx.post(door.url + PATH, content=body, headers=sent, trust_env=False)
            assert answer.status_code == 415, answer.text
            assert answer.headers["x-request-id"] != "my-id"
    finally:
        planted.unlink()
        # Nobody's, it may have been taken away.
        (door.bodies / "77").unlink(missing_ok=True)


def test_a_body_that_is_cut_off_leaves_nothing(door: FrontProcess) -> None:
    for _ in range(20):
        with connect(door) as connection:
            connection.sendall(head_of(len(LARGE)) + LARGE[: len(LARGE) // 2])
    eventually(lambda: not list(door.bodies.iterdir()))
    answer = httpx.post(door.url + PATH, content=LARGE, trust_env=False)
    assert answer.status_code == 200


def leave(door: FrontProcess, body: bytes) -> None:
    """Forty clients send a body and leave."""
    for _ in range(40):
        with connect(door) as connection:
            connection.sendall(head_of(len(body)) + body)


def has_clients(door: FrontProcess) -> bool:
    """Tells whether nginx has a connection of a client, or has not noticed that it was closed."""
    port = httpx.URL(door.url).port
    workers = map(psutil.Process, door.nginx_workers())
    sockets = [one for worker in workers for one in worker.net_connections("tcp")]
    return any(one.laddr.port == port and one.raddr for one in sockets)


def count_gone(door: FrontProcess) -> float:
    """Returns how many bodies the workers did not find because their client had left."""
    text = httpx.get(door.metrics_url, trust_env=False).text
    return sum(map(float, re.findall(r'errors_total{.*"BodyGone".*} (\S+)', text)))


def test_client_that_leaves_before_the_answer_harms_nobody(door: FrontProcess) -> None:
    workers = door.python_workers()
    leave(door, LARGE)
    answer = httpx.post(door.url + PATH, content=LARGE, trust_env=False)
    assert answer.status_code == 200
    assert door.python_workers() == workers
    eventually(lambda: not list(door.bodies.iterdir()))


def test_small_images_of_clients_that_have_left_are_not_decoded(door: FrontProcess) -> None:
    costly = png(3000, 3000, 8, PALETTE, 8, False)
    assert len(costly) < 15_000
    gone = count_gone(door)
    workers = [psutil.Process(pid) for pid in door.python_workers()]
    for worker in workers:
        worker.suspend()
    try:
        leave(door, costly)
        eventually(lambda: not has_clients(door))
    finally:
        for worker in workers:
            worker.resume()
    eventually(lambda: count_gone(door) >= gone + 20)


def test_a_pipelining_client_gets_its_answers_in_order(door: FrontProcess) -> None:
    other = b"no image"
    with connect(door) as connection:
        connection.sendall((head_of(len(LARGE)) + LARGE + head_of(len(other)) + other) * 4)
        received = b""
        while received.count(b"HTTP/1.1 ") < 8 or not received.endswith(b"}"):
            received += connection.recv(65536)
    statuses = [status_of(part) for part in received.split(b"HTTP/1.1")[1:]]
    assert statuses == [200, 415] * 4


def test_the_doors_log_is_rotated(door: FrontProcess) -> None:
    log = door.log_dir / "front.log"
    with open(log, "ab") as file:
        file.truncate(21 << 20)
    eventually((log.with_name("front.log.1")).exists)
    eventually(lambda: log.exists() and log.stat().st_size < 1 << 20)
    assert log.with_name("front.log.1").stat().st_size >= 21 << 20


def test_client_that_stops_sending_gets_no_answer_and_is_counted(door: FrontProcess) -> None:
    """nginx has the status 408, but closes the connection without sending it."""
    before = read_counts(door.metrics_url)[TIMED_OUT]
    with ExitStack() as stack:
        for half in (b"POST", head_of(len(LARGE)) + LARGE[:1000]):
            client = stack.enter_context(connect(door))
            client.sendall(half)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1000) == b""
    eventually(lambda: read_counts(door.metrics_url)[TIMED_OUT] == before + 2, 5)


def make_request(generator: random.Random) -> bytes:
    methods = ["POST", "PUT", "GET", "HEAD", "OPTIONS", "DELETE", "POST", "BREW"]
    paths = [PATH, "/ping", "/", "/predictions/", "/predictions/%2e%2e/models", PATH]
    lines = [f"{generator.choice(methods)} {generator.choice(paths)} HTTP/1.1", "Host: x"]
    extra = [
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "X-Offpath-Body: /etc/passwd",
        "describe: True",
        "Content-Length: -1",
        "X: " + "a" * generator.randint(1, 5000),
    ]
    lines += generator.sample(extra, generator.randint(0, 3))
    body = generator.randbytes(generator.choice([0, 10, 1000, 300_000]))
    if generator.random() < 0.7:
        lines.append(f"Content-Length: {len(body)}")
    request = "\r\n".join([*lines, "", ""]).encode() + body
    if generator.random() < 0.2:
        at = generator.randrange(len(request))
        request = request[:at] + generator.randbytes(8) + request[at:]
    return request


def send_random(door: FrontProcess, seed: int) -> int | None:
    """Returns the answer's status; None if the door closes the connection or waits for more."""
    with connect(door) as connection:
        connection.settimeout(0.7)
        try:
            connection.sendall(make_request(random.Random(seed)))
            answer = connection.recv(4096)
            if answer.startswith(b"HTTP/1.1 100"):
                answer = connection.recv(4096)
        except OSError:
            return None
    return status_of(answer) if answer.startswith(b"HTTP/1.1 ") else None


def send_randoms(door: FrontProcess, count: int) -> set[int | None]:
    """Sends random requests, checks that no process died, and returns the statuses."""
    workers, nginx = door.python_workers(), door.nginx_workers()
    with ThreadPoolExecutor(16) as pool:
        statuses = set(pool.map(lambda seed: send_random(door, seed), range(count)))
    assert door.python_workers() == workers
    assert door.nginx_workers() == nginx
    eventually(lambda: not list(door.bodies.iterdir()))
    return statuses


def test_random_requests_cause_no_5xx_and_kill_nobody(door: FrontProcess) -> None:
    statuses = send_randoms(door, RANDOM_REQUESTS)
    assert 415 in statuses and 400 in statuses
    assert not {s for s in statuses if s and s >= 500}, statuses
