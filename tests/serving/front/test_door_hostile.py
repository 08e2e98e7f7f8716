"""Hostile and broken clients of the front door."""

from __future__ import annotations

import contextlib
import re
import time
from contextlib import ExitStack

import httpx
import psutil
import pytest

from offpath.serving.granian.worker import TICK_S
from tests.fuzz.costly_requests import PALETTE, png
from tests.support.eventually import eventually
from tests.support.front import FrontProcess, read_counts
from tests.support.granian import GranianProcess
from tests.support.guarantees import guarantee
from tests.support.hostile_clients import (
    FORMS,
    LARGE,
    Form,
    check_clients_that_leave,
    check_cut_off_bodies,
    check_pipelining,
    check_random_requests,
    connect,
    leave,
)

pytestmark = pytest.mark.server

TIMED_OUT = ("408", "RequestTimeout")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, door: FrontProcess) -> Form:
    """Each form of request that the server behind the door knows."""
    form = FORMS[request.param]
    if form.is_of_kserve and not isinstance(door, GranianProcess):
        pytest.skip("before TorchServe the door has no paths of KServe")
    return form


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize("spelling", ["X-Offpath-{}", "x-offpath-{}", "X-OFFPATH-{}"])
@pytest.mark.parametrize("body", [b"small: no image", bytes(600_000)])
def test_internal_headers_of_a_client_are_ignored(
    door: FrontProcess, form: Form, spelling: str, body: bytes
) -> None:
    planted = door.bodies.parent / f"planted-{door.bodies.name}"
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
            answer = form.post(door.url, body, **sent)
            assert answer.status_code in form.bad, answer.text
            assert answer.headers["x-request-id"] != "my-id"
    finally:
        planted.unlink()
        # Nobody's, it may have been taken away.
        (door.bodies / "77").unlink(missing_ok=True)


def test_a_header_makes_no_explanation_of_a_prediction(door: FrontProcess, form: Form) -> None:
    plain, forged = (form.post(door.url, LARGE, **headers) for headers in ({}, {"explain": "True"}))
    assert plain.status_code == forged.status_code
    # An explanation has a number for each pixel, and V2's reply an id of its own.
    assert len(plain.content) == len(forged.content)


@guarantee("Slow clients, half bodies, crowds")
def test_a_body_that_is_cut_off_leaves_nothing(door: FrontProcess, form: Form) -> None:
    check_cut_off_bodies(door, form)


def has_clients(door: FrontProcess) -> bool:
    """Tells whether nginx has a connection of a client, or has not noticed that it was closed."""
    port = httpx.URL(door.url).port
    workers = map(psutil.Process, door.nginx_workers())
    sockets = [one for worker in workers for one in worker.net_connections("tcp")]
    return any(one.laddr.port == port and one.raddr for one in sockets)


def count_gone(door: FrontProcess, form: Form) -> float:
    """Returns how many bodies the workers did not find because their client had left."""
    text = httpx.get(door.metrics_url, trust_env=False).text
    # The handler counts its own errors; requests of KServe end before it.
    name = r"Requests4XX{.*}" if form.is_of_kserve else r'\w*errors_total{.*"BodyGone".*}'
    return sum(map(float, re.findall(rf"^{name} (\S+)", text, re.MULTILINE)))


@guarantee("Slow clients, half bodies, crowds")
def test_client_that_leaves_before_the_answer_harms_nobody(door: FrontProcess, form: Form) -> None:
    check_clients_that_leave(door, form)


def test_a_pipelining_client_gets_its_answers_in_order(door: FrontProcess, form: Form) -> None:
    check_pipelining(door, form)


def test_random_requests_cause_no_5xx_and_kill_nobody(door: FrontProcess, form: Form) -> None:
    check_random_requests(door, form)


@guarantee(
    "Images of clients who have left",
    "serving/conf/nginx.conf",
    "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;",
    (
        "proxy_set_header {{ names.BODY_HEADER }} $request_body_file;\n"
        "proxy_ignore_client_abort on;"
    ),
)
def test_small_images_of_clients_that_have_left_are_not_decoded(
    door: FrontProcess, form: Form
) -> None:
    if not form.is_prediction:
        pytest.skip("explanations are closed at this door")
    costly = png(3000, 3000, 8, PALETTE, 8, False)
    assert len(costly) < 15_000

    def is_settled() -> bool:
        before = count_gone(door, form)
        time.sleep(2 * TICK_S)
        return count_gone(door, form) == before

    eventually(is_settled)
    gone = count_gone(door, form)
    workers = [psutil.Process(pid) for pid in door.python_workers()]
    for worker in workers:
        worker.suspend()
    try:
        leave(door, form, costly)
        eventually(lambda: not has_clients(door))
    finally:
        for worker in workers:
            worker.resume()
    eventually(lambda: count_gone(door, form) >= gone + 20)


@guarantee("Logs that fill the disk or forge lines")
@pytest.mark.parametrize("name", ["front.log", "front-access.log"])
def test_the_doors_log_is_rotated(door: FrontProcess, name: str) -> None:
    log = door.log_dir / name
    with open(log, "ab") as file:
        file.truncate(21 << 20)
    eventually(log.with_name(f"{name}.1").exists)
    eventually(lambda: log.exists() and log.stat().st_size < 1 << 20)
    assert log.with_name(f"{name}.1").stat().st_size >= 21 << 20


@guarantee(
    "Slow clients",
    "serving/conf/nginx.conf",
    "client_body_timeout {{ settings.client_timeout_s }}s;",
    "client_body_timeout 3600s;",
)
def test_client_that_stops_sending_gets_no_answer_and_is_counted(
    door: FrontProcess, form: Form
) -> None:
    """nginx has the status 408, but closes the connection without sending it."""
    if not form.is_prediction:
        pytest.skip("this door answers 403 before it has the body")
    before = read_counts(door.metrics_url)[TIMED_OUT]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(door)) for _ in range(2)]
        for client, half in zip(clients, (b"POST", form.request(LARGE)[:1000])):
            client.sendall(half)
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1000) == b""
    eventually(lambda: read_counts(door.metrics_url)[TIMED_OUT] == before + 2, 5)
