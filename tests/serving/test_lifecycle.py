"""What works with the stock handler keeps working: explanations, describe, scaling, versions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from offpath.serving.torchserve import TorchServe
from tests.conftest import build
from tests.support.pictures import jpeg

pytestmark = pytest.mark.server


@pytest.fixture
def management(server: TorchServe) -> httpx.Client:
    return httpx.Client(base_url=server.management_url, timeout=120)


@contextmanager
def constant_load(server: TorchServe, path: str) -> Iterator[Counter[int]]:
    """Sends one request after the other on four connections; counts the statuses."""
    statuses: Counter[int] = Counter()
    stop = threading.Event()
    body = jpeg(size=(500, 333))

    def send() -> None:
        with httpx.Client(base_url=server.inference_url, timeout=60) as http:
            while not stop.is_set():
                statuses[http.post(path, content=body).status_code] += 1

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_explanations_have_the_inputs_shape(server: TorchServe) -> None:
    files = {"data": ("photo.jpg", jpeg(), "image/jpeg")}
    url = f"{server.inference_url}/explanations/classifier"
    response = httpx.post(url, files=files, data={"target": "967"}, timeout=120)
    assert response.status_code == 200, response.text[:500]
    attributions = response.json()
    assert len(attributions) == 3
    assert len(attributions[0]) == 224 and len(attributions[0][0]) == 224
    assert any(value != 0 for value in attributions[0][112])


def test_an_explanation_of_an_unknown_class_is_refused(server: TorchServe) -> None:
    files = {"data": ("photo.jpg", jpeg(), "image/jpeg")}
    url = f"{server.inference_url}/explanations/classifier"
    response = httpx.post(url, files=files, data={"target": "1000"}, timeout=120)
    assert (response.status_code, response.json()["type"]) == (400, "BadTarget")


def test_describe_tells_what_the_worker_runs_with(management: httpx.Client) -> None:
    answer = management.get("/models/classifier", params={"customized": "true"})
    metadata = answer.json()[0]["customizedMetadata"]
    assert metadata["handler"] == "offpath"
    assert metadata["classes"] == 1000
    assert metadata["image_size"] == 224


def test_workers_scale_up_and_down_under_load(
    server: TorchServe, management: httpx.Client
) -> None:
    with constant_load(server, "/predictions/near-free") as statuses:
        for workers in (3, 1, 2):
            answer = management.put(
                "/models/near-free",
                params={
                    "min_worker": workers,
                    "max_worker": workers,
                    "synchronous": "true",
                },
            )
            assert answer.status_code == 200, answer.text
            time.sleep(0.5)
    described = management.get("/models/near-free").json()[0]
    assert [w["status"] for w in described["workers"]] == ["READY", "READY"]
    # A worker that is scaled away takes its batch with it (TorchServe kills it): those get 500.
    assert statuses[200] > 50
    assert set(statuses) <= {200, 500, 503}


def test_two_versions_serve_side_by_side_and_the_default_is_replaced(
    server: TorchServe,
    management: httpx.Client,
    model_store: Path,
) -> None:
    build(model_store, "near-free", "versioned", version="1.0", top_k=1)
    body = jpeg(size=(500, 333))

    def labels(path: str) -> int:
        answer = httpx.post(server.inference_url + path, content=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return len(answer.json())

    def register() -> None:
        answer = management.post(
            "/models",
            params={
                "url": "versioned.mar",
                "initial_workers": 1,
                "synchronous": "true",
            },
        )
        assert answer.status_code == 200, answer.text

    register()
    assert labels("/predictions/versioned") == 1
    build(model_store, "near-free", "versioned", version="2.0", top_k=3)
    with constant_load(server, "/predictions/versioned") as statuses:
        register()
        assert labels("/predictions/versioned/1.0") == 1
        assert labels("/predictions/versioned/2.0") == 3
        answer = management.put("/models/versioned/2.0/set-default")
        assert answer.status_code == 200, answer.text
        assert labels("/predictions/versioned") == 3
        assert management.delete("/models/versioned/1.0").status_code == 200
        assert labels("/predictions/versioned") == 3
    assert set(statuses) == {200}
    assert management.delete("/models/versioned/2.0").status_code == 200
