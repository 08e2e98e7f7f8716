"""Hostile and broken clients of a front door, whatever server is behind it."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.eventually import MOST_S, eventually
from tests.support.front import FrontProcess
from tests.support.images import jpeg

PATH = "/predictions/near-free"
LARGE = jpeg(size=(2048, 1365))
RANDOM_REQUESTS = 300


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


def leave(door: FrontProcess, body: bytes) -> None:
    """Forty clients send a body and leave."""
    for _ in range(40):
        with connect(door) as connection:
            connection.sendall(head_of(len(body)) + body)


def check_clients_that_leave(door: FrontProcess) -> None:
    workers = door.python_workers()
    leave(door, LARGE)
    answer = httpx.post(door.url + PATH, content=LARGE, trust_env=False)
    assert answer.status_code == 200
    assert door.python_workers() == workers
    eventually(lambda: not list(door.bodies.iterdir()))


def check_pipelining(door: FrontProcess) -> None:
    other = b"no image"
    with connect(door) as connection:
        connection.sendall((head_of(len(LARGE)) + LARGE + head_of(len(other)) + other) * 4)
        received = b""
        while received.count(b"HTTP/1.1 ") < 8 or not received.endswith(b"}"):
            received += connection.recv(65536)
    statuses = [status_of(part) for part in received.split(b"HTTP/1.1")[1:]]
    assert statuses == [200, 415] * 4


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


def check_random_requests(door: FrontProcess) -> None:
    statuses = send_randoms(door, RANDOM_REQUESTS)
    assert 415 in statuses and 400 in statuses
    assert not {s for s in statuses if s and s >= 500}, statuses
