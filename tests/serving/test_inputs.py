"""Good and bad bodies through a real TorchServe and a real Granian, without a front door."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from offpath.serving.client import Client
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.guarantees import guarantee
from tests.support.images import jpeg, rejected

pytestmark = pytest.mark.server
PATH = "/predictions/near-free"


@pytest.fixture
def http(either: TorchServe) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=either.inference_url, timeout=60) as client:
        yield client


def test_an_image_that_is_labelled_a_form_is_refused_with_the_cure(server: TorchServe) -> None:
    """Behind a front door, and with Granian, the handler gets the body and reads the image."""
    body = b"\x89PNG\r\n\x1a\n&" + b"x" * 100
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    response = httpx.post(server.inference_url + PATH, content=body, headers=form)
    assert response.status_code == 415
    assert "Content-Type: application/octet-stream" in response.text


def test_a_thin_client_gets_the_same_answer(either: TorchServe) -> None:
    with Client(either.inference_url, "near-free") as full:
        expected = full.predict(jpeg()).labels
    with Client(either.inference_url, "near-free", thin=True) as thin:
        got = thin.predict(jpeg()).labels
    assert [label for label, _ in got][0] == expected[0][0]
    assert abs(got[0][1] - expected[0][1]) < 0.01


@guarantee("A bad item or a time-out in a batch")
def test_neighbours_of_bad_items_are_answered(either: TorchServe) -> None:
    good = jpeg(size=(500, 333))
    bad = [body for body, *_ in rejected().values() if len(body) < 1_000_000]
    bodies = [good if i % 2 else bad[i // 2 % len(bad)] for i in range(128)]

    def send(client: httpx.Client, body: bytes) -> int:
        return client.post(PATH, content=body).status_code

    with (
        httpx.Client(base_url=either.inference_url, timeout=60) as client,
        ThreadPoolExecutor(32) as pool,
    ):
        statuses = list(pool.map(lambda body: send(client, body), bodies))
    assert set(statuses[1::2]) == {200}
    assert all(400 <= status < 500 for status in statuses[::2])


@guarantee("Bytes that cause a 5xx or end a worker")
def test_random_bodies_neither_fail_the_server_nor_kill_a_worker(either: TorchServe) -> None:
    workers = either.worker_pids()
    generator = random.Random(0)
    magics = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF", b"BM"]
    magics += [b"II*\x00", b"\x93NUMPY\x01\x00", b"{", b'"']
    limits = httpx.Limits(max_connections=16, max_keepalive_connections=16)
    with (
        httpx.Client(base_url=either.inference_url, timeout=60, limits=limits) as http,
        ThreadPoolExecutor(16) as pool,
    ):

        def send(_: int) -> int:
            body = generator.choice(magics) + generator.randbytes(generator.randint(1, 2000))
            return http.post(PATH, content=body).status_code

        statuses = list(pool.map(send, range(1000)))
    assert all(status == 200 or 400 <= status < 500 for status in statuses)
    assert either.worker_pids() == workers
