"""Hostile and broken clients of servers with and without a front door."""

from __future__ import annotations

import contextlib
import re
import time
from contextlib import ExitStack

import httpx
import psutil
import pytest

from offpath.serving.granian.worker import TICK_S
from tests.guarantees import guarantee
from tests.serving.conftest import Direct
from tests.serving.contract.hostile_clients import FORMS, Form, connect
from tests.serving.scrape import read_counts
from tests.support.costly import PALETTE, png
from tests.support.eventually import eventually
from tests.support.front import FrontProcess
from tests.support.images import jpeg

pytestmark = pytest.mark.server

Target = FrontProcess | Direct
LARGE = jpeg(size=(2048, 1365))
TIMED_OUT = ("408", "RequestTimeout")

# Before TorchServe, a door has no paths of KServe.
CASES = {
    f"{server}-{name}": (server, form)
    for server in ("torchserve_door", "granian_door", "granian")
    for name, form in FORMS.items()
    if server != "torchserve_door" or not form.is_of_kserve
}
# An explanation may be refused before its body is there, and V2's bodies are read as V1's are.
PREDICTIONS_AT_DOORS = [
    "torchserve_door-predictions",
    "granian_door-predictions",
    "granian_door-v1",
]


@pytest.fixture
def form(case: str) -> Form:
    return CASES[case][1]


@pytest.fixture
def target(request: pytest.FixtureRequest, case: str) -> Target:
    running: Target = request.getfixturevalue(CASES[case][0])
    return running


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize("case", CASES)
def test_bodies_that_are_cut_off_leave_no_file(target: Target, form: Form) -> None:
    body = form.wrap(LARGE)
    for _ in range(20):
        with connect(target.url) as connection:
            connection.sendall(form.head(len(body)) + body[: len(body) // 2])
    eventually(lambda: not list(target.bodies.iterdir()))
    assert form.post(target.url, LARGE).status_code in form.fine


def leave(target: Target, form: Form, image: bytes) -> None:
    """Forty clients send an image and leave."""
    for _ in range(40):
        with connect(target.url) as connection:
            connection.sendall(form.request(image))


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize("case", CASES)
def test_clients_that_leave_cost_no_worker_and_leave_no_file(target: Target, form: Form) -> None:
    workers = target.python_workers()
    leave(target, form, LARGE)
    assert form.post(target.url, LARGE).status_code in form.fine
    assert target.python_workers() == workers
    eventually(lambda: not list(target.bodies.iterdir()))


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize("case", CASES)
def test_requests_that_do_not_wait_for_replies_get_theirs_in_order(
    target: Target, form: Form
) -> None:
    with connect(target.url) as connection:
        connection.sendall((form.request(LARGE) + form.request(b"no image")) * 4)
        received = b""
        while received.count(b"HTTP/1.1 ") < 8 or not received.endswith(b"}"):
            part = connection.recv(65536)
            if not part:
                break
            received += part
    replies = received.split(b"HTTP/1.1")[1:]
    statuses = [int(reply.split(b" ", 2)[1]) for reply in replies]
    # Without a door, busy workers close some connections after an answer.
    assert len(statuses) == 8 or b"connection: close" in replies[-1], statuses
    assert {*statuses[::2]} <= {*form.fine}, statuses
    assert {*statuses[1::2]} <= {*form.bad}, statuses


@guarantee(
    "A web page whose name leads to loopback",
    "serving/conf/nginx.conf",
    "        if ($offpath_knows_host = 0) {",
    "        if ($offpath_knows_host = 2) {",
)
@guarantee(
    "A web page whose name leads to loopback",
    "serving/process/ports.py",
    "return is_loopback(name) or name in names",
    "return True",
)
@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:8080")),
        *((name, 200) for name in ("[::1]:80", "models.example", "Models.Example:80")),
        *((name, 403) for name in ("evil.example", "127.0.0.1.evil.example", "modelsxexample")),
        *((name, 403) for name in ("10.0.0.1", "default", "[::2]", "localhost.evil.example")),
    ],
)
@pytest.mark.parametrize("server", ["torchserve_door", "granian_door", "granian"])
def test_a_server_on_loopback_answers_to_its_names_alone(
    request: pytest.FixtureRequest, server: str, host: str, status: int
) -> None:
    running, headers = request.getfixturevalue(server), {"Host": host}
    url, prediction = running.url, FORMS["predictions"]
    replies = [
        prediction.post(url, LARGE, **headers),
        *(httpx.get(url + path, headers=headers) for path in ("/ping", "/live", "/nothing")),
        httpx.get(running.metrics_url, headers=headers),
    ]
    statuses = [reply.status_code for reply in replies]
    if status == 403:
        assert statuses == [403] * 5 and "--allow-host" in replies[0].json()["message"]
    else:
        # Granian's own page of metrics, without a door, knows loopback's names alone.
        is_unknown = server == "granian" and host.lower().startswith("models")
        assert statuses == [200, 200, *statuses[2:4], 403 if is_unknown else 200]
        assert 403 not in statuses[:4]


def has_clients(target: FrontProcess) -> bool:
    """Tells whether nginx has a connection of a client, or has not noticed that it was closed."""
    port = httpx.URL(target.url).port
    workers = map(psutil.Process, target.nginx_workers())
    sockets = [one for worker in workers for one in worker.net_connections("tcp")]
    return any(one.laddr.port == port and one.raddr for one in sockets)


def count_gone(target: FrontProcess, form: Form) -> float:
    """Returns how many bodies the workers did not find because their client had left."""
    text = httpx.get(target.metrics_url, trust_env=False).text
    # The handler counts its own errors; requests of KServe end before it.
    name = r"Requests4XX{.*}" if form.is_of_kserve else r'\w*errors_total{.*"BodyGone".*}'
    return sum(map(float, re.findall(rf"^{name} (\S+)", text, re.MULTILINE)))


@guarantee(
    "Images of clients who have left",
    "serving/conf/nginx.conf",
    "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;",
    (
        "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;\n"
        "proxy_ignore_client_abort on;"
    ),
)
@pytest.mark.parametrize("case", PREDICTIONS_AT_DOORS)
def test_small_images_of_clients_that_have_left_are_not_decoded(
    target: FrontProcess, form: Form
) -> None:
    costly = png(3000, 3000, 8, PALETTE, 8, False)
    assert len(costly) < 15_000

    def is_settled() -> bool:
        before = count_gone(target, form)
        time.sleep(2 * TICK_S)
        return count_gone(target, form) == before

    eventually(is_settled)
    gone = count_gone(target, form)
    workers = [psutil.Process(pid) for pid in target.python_workers()]
    for worker in workers:
        worker.suspend()
    try:
        leave(target, form, costly)
        eventually(lambda: not has_clients(target))
    finally:
        for worker in workers:
            worker.resume()
    eventually(lambda: count_gone(target, form) >= gone + 20)


@guarantee(
    "Slow clients",
    "serving/conf/nginx.conf",
    "client_body_timeout {{ settings.client_timeout_s }}s;",
    "client_body_timeout 3600s;",
)
@pytest.mark.parametrize("case", PREDICTIONS_AT_DOORS)
def test_client_that_stops_sending_gets_no_answer_and_is_counted(
    target: FrontProcess, form: Form
) -> None:
    """nginx has the status 408, but closes the connection without sending it."""
    before = read_counts(target.metrics_url)[TIMED_OUT]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(target.url)) for _ in range(2)]
        for client, half in zip(clients, (b"POST", form.request(LARGE)[:1000])):
            client.sendall(half)
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1000) == b""
    eventually(lambda: read_counts(target.metrics_url)[TIMED_OUT] == before + 2, 5)
