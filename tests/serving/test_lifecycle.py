"""Features of the stock handler that still work: explanations, describe, scaling, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zipfile import ZipFile

import httpx
import psutil
import pytest

from offpath.serving.server.management import ManagementClient
from offpath.serving.torchserve.server import TorchServe
from tests.conftest import build
from tests.support.eventually import eventually
from tests.support.front import load
from tests.support.images import jpeg

pytestmark = pytest.mark.server
CLIENTS = 4


@pytest.fixture
def management(server: TorchServe) -> Iterator[ManagementClient]:
    with server.management() as client:
        yield client


def describe(server: TorchServe, model: str) -> dict[str, Any]:
    """Returns the worker's description of itself."""
    url = f"{server.management_url}/models/{model}"
    answer = httpx.get(url, params={"customized": "true"}, timeout=60)
    metadata: dict[str, Any] = answer.json()[0]["customizedMetadata"]
    return metadata


def test_forked_worker_runs_the_copy_of_the_handler_in_its_archive(
    server: TorchServe, management: ManagementClient
) -> None:
    """The fork server has imported the handler of this repository."""
    model_store = server.settings.model_store
    own = model_store / "own.mar"
    source = "offpath/handler/classifier.py"
    with ZipFile(model_store / "near-free.mar") as old, ZipFile(own, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == source:
                assert content.count(b'"handler": "offpath"') == 1
                content = content.replace(b'"handler": "offpath"', b'"handler": "own"')
            new.writestr(name, content)
    management.register("own.mar", model_name="own", initial_workers=1)
    try:
        (status,) = management.describe("own")
        for worker in status.worker_pids:
            command = psutil.Process(worker).cmdline()
            assert any("fork_server.py" in part for part in command)
        assert describe(server, "own")["handler"] == "own"
    finally:
        management.unregister("own")


def test_two_versions_serve_side_by_side_and_the_default_is_replaced(
    server: TorchServe, management: ManagementClient
) -> None:
    model_store, body = server.settings.model_store, jpeg(size=(500, 333))

    def labels(path: str) -> int:
        answer = httpx.post(server.inference_url + path, content=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return len(answer.json())

    build(model_store, "near-free", "versioned", version="1.0", top_k=1)
    management.register("versioned.mar", initial_workers=1)
    assert labels("/predictions/versioned") == 1
    build(model_store, "near-free", "versioned", version="2.0", top_k=3)
    url = f"{server.inference_url}/predictions/versioned"
    with load(url, [body], CLIENTS) as seen:
        eventually(lambda: len(seen.replies) >= 20)
        management.register("versioned.mar", initial_workers=1)
        assert labels("/predictions/versioned/1.0") == 1
        assert labels("/predictions/versioned/2.0") == 3
        default = f"{server.management_url}/models/versioned/2.0/set-default"
        assert httpx.put(default, timeout=60).status_code == 200
        assert labels("/predictions/versioned") == 3
        # TorchServe never answers a request that waits for a version while it is unregistered.
        count = len(seen.replies)
        eventually(lambda: len(seen.replies) >= count + 5 * CLIENTS)
        management.unregister("versioned", "1.0")
        assert labels("/predictions/versioned") == 3
        count = len(seen.replies)
        eventually(lambda: len(seen.replies) >= count + 20)
    assert set(seen.statuses) == {200} and not seen.broken
    management.unregister("versioned", "2.0")
