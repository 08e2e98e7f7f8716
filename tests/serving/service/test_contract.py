"""One contract for every server: the same request gets the same reply.

TorchServe and Granian run for real. Ray's and Triton's classes run in a stand-in of their host
(tests/support/export_host.py); the real ones run in tests/deploy, where they are set up.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from offpath.deploy.ray.export import export_ray
from offpath.deploy.triton.export import export_triton
from offpath.handler.config import HandlerConfig
from offpath.handler.wire_names import (
    ARRIVED_HEADER,
    BODY_HEADER,
    ID_HEADER,
    KEY_HEADER,
    RECEIVED_HEADER,
    TYPE_HEADER,
    WARM_UP_HEADER,
)
from offpath.serving.server.server_settings import ServerSettings, read_config
from offpath.serving.service.model_service import largest_body_bytes
from offpath.serving.session import make_server
from offpath.serving.torchserve.server import TorchServe
from tests.serving.granian.test_granian import build
from tests.support import export_host
from tests.support.eventually import MOST_S, eventually
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[3]
JPEG = encode(PHOTOGRAPHS[0].rgb, "JPEG", quality=90)
MOST_IMAGE = HandlerConfig().max_payload_bytes
TRITON = "triton"


@contextmanager
def hosted(kind: str, archive: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Runs an export in the stand-in of its host; returns what that says about itself."""
    if kind == TRITON:
        export_triton(archive, folder)
    else:
        export_ray(archive, folder)
    command = [sys.executable, export_host.__file__, kind, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/")
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield {**said, "url": f"http://127.0.0.1:{said['port']}"}
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def granian(model_store: Path) -> Iterator[TorchServe]:
    settings = ServerSettings(
        model_store=model_store,
        models=("near-free.mar",),
        server="granian",
        inference_port=0,
        metrics_port=0,
    )
    with make_server(settings) as running:
        yield running


@pytest.fixture(scope="module", params=["torchserve", "granian", "ray", TRITON])
def adapter(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, httpx.Client]]:
    """Returns each server's name, and a client of it."""
    kind = request.param
    if kind in ("ray", TRITON):
        folder = tmp_path_factory.mktemp(kind) / "export"
        with hosted(kind, model_store / "near-free.mar", folder) as said:
            with httpx.Client(base_url=said["url"], timeout=MOST_S) as client:
                yield kind, client
        return
    running = request.getfixturevalue("server" if kind == "torchserve" else kind)
    with httpx.Client(base_url=running.inference_url, timeout=MOST_S) as client:
        yield kind, client


@pytest.fixture
def send(adapter: tuple[str, httpx.Client]):
    kind, client = adapter

    def ask(method: str, path: str, **options: Any) -> httpx.Response:
        if kind == TRITON and not path.startswith("/predictions"):
            pytest.skip("Triton has paths of its own")
        if kind == TRITON and method == "GET":
            pytest.skip("Triton refuses it itself")
        return client.request(method, path, **options)

    return ask


def is_status(reply: httpx.Response, adapter: tuple[str, httpx.Client], status: int) -> bool:
    """Triton's errors have fewer statuses."""
    if adapter[0] == TRITON:
        status = status if status in (200, 500) else 503 if status >= 500 else 400
    return reply.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("POST", "/predictions/near-free", JPEG, 200, id="post"),
        pytest.param("PUT", "/predictions/near-free", JPEG, 200, id="put"),
        pytest.param("POST", "/predictions/near-free", b"", 400, id="empty"),
        pytest.param("POST", "/predictions/near-free", b"no image", 415, id="no-image"),
        pytest.param("POST", "/predictions/near-free", JPEG[:999], 422, id="cut-off"),
        pytest.param("POST", "/predictions/near-free", bytes(MOST_IMAGE + 1), 413, id="too-large"),
        pytest.param("GET", "/predictions/near-free", b"", 405, id="get"),
        pytest.param("POST", "/predictions/other", JPEG, 404, id="no-model"),
    ],
)
def test_a_request_gets_the_same_reply_from_every_server(
    adapter, send, server: TorchServe, method: str, path: str, body: bytes, status: int
) -> None:
    if adapter[0] == TRITON and path.endswith("other"):
        pytest.skip("Triton has paths of its own")
    if adapter[0] == "torchserve" and method == "GET":
        status = 200 if body else 400  # Java takes any method
    reply = send(method, path, content=body)
    assert is_status(reply, adapter, status), reply.text
    if path.endswith("other") or method == "GET":
        return
    theirs = httpx.request(method, f"{server.inference_url}{path}", content=body, timeout=MOST_S)
    if status == 200:
        assert list(reply.json()) == list(theirs.json())
        assert reply.json() == pytest.approx(theirs.json(), abs=1e-5)
    else:
        assert reply.json() == theirs.json()


def test_an_image_of_the_largest_size_may_come_as_base64(adapter, send) -> None:
    text = base64.b64encode(bytes(MOST_IMAGE)).decode()
    reply = send("POST", "/predictions/near-free", json={"data": text})
    # The handler has seen it, and zeros are no image.
    assert reply.json()["type"] == "UnsupportedFormat"


def test_bodies_that_no_image_needs_are_refused(adapter, send) -> None:
    if adapter[0] == TRITON:
        pytest.skip("Triton reads bodies itself")
    reply = send("POST", "/predictions/near-free", content=bytes(40_000_000))
    assert reply.status_code == 413


def test_the_configuration_takes_what_an_export_takes() -> None:
    settings = ServerSettings(Path(), (), config=ROOT / "config.properties")
    most = int(read_config(settings)["max_request_size"])
    assert most >= largest_body_bytes(MOST_IMAGE)


def test_explanations(adapter, send) -> None:
    def ask() -> httpx.Response | None:
        reply = send("POST", "/explanations/near-free", content=JPEG)
        return None if reply.status_code == 429 else reply

    assert np.shape(eventually(ask).json()) == (3, 224, 224)


def test_ping(adapter, send) -> None:
    assert send("GET", "/ping").json() == {"status": "Healthy"}


def test_a_request_without_time_is_refused(adapter, send) -> None:
    headers = {"x-request-timeout-ms": "0"}
    reply = send("POST", "/predictions/near-free", content=JPEG, headers=headers)
    assert is_status(reply, adapter, 504) and reply.json()["type"] == "DeadlineExceeded"


def test_headers_of_the_front_door_mean_nothing_from_a_client(send, tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(JPEG)
    forged = {
        BODY_HEADER: str(tmp_path / "1"),
        TYPE_HEADER: "multipart/form-data; boundary=x",
        ID_HEADER: "mine",
        ARRIVED_HEADER: "0",
        RECEIVED_HEADER: "0",
    }
    for key in ({}, {KEY_HEADER: "0" * 64, WARM_UP_HEADER: "0" * 64}):
        for body in (JPEG, b"no image"):
            replies = [
                send("POST", "/predictions/near-free", content=body, headers=headers)
                for headers in ({}, forged | key)
            ]
            assert replies[0].status_code == replies[1].status_code
            assert replies[0].json() == replies[1].json()
            assert "mine" not in replies[1].headers.values()


def test_each_request_has_an_id_of_its_own(adapter, send) -> None:
    if adapter[0] in ("ray", TRITON):
        pytest.skip("the host makes the header")
    sent = {"x-request-id": "mine"}
    replies = [
        send("POST", "/predictions/near-free", content=body, headers=sent)
        for body in (JPEG, JPEG, b"no image")
    ]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 3 and "mine" not in ids


@pytest.fixture(params=["ray", TRITON])
def tricky(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """Returns the host's kind and URL, and the file that its model obeys."""
    (tmp_path / "store").mkdir()
    archive = build(tmp_path / "store", tmp_path / "flag", timeout_s=1)
    with hosted(request.param, archive, tmp_path / "export") as said:
        yield request.param, said["url"], tmp_path / "flag"


def test_a_broken_model_is_said_to_the_host(tricky: tuple[str, str, Path]) -> None:
    kind, url, flag = tricky
    predict = f"{url}/predictions/tricky"
    assert httpx.post(predict, content=JPEG, timeout=MOST_S).status_code == 200
    flag.write_text("break")
    replies = [httpx.post(predict, content=JPEG, timeout=MOST_S) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [503, 503]
    if kind == "ray":
        assert "CUDA error" in httpx.get(f"{url}/health").text
    else:
        assert replies[1].json()["type"] == "ModelGone"


def test_a_model_that_hangs_is_said_to_ray(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    archive = build(tmp_path / "store", tmp_path / "flag", timeout_s=1)
    with hosted("ray", archive, tmp_path / "export") as said:
        assert httpx.get(f"{said['url']}/health").text == ""
        (tmp_path / "flag").write_text("hang")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{said['url']}/predictions/tricky", content=JPEG, timeout=0.1)
        eventually(lambda: "has been running" in httpx.get(f"{said['url']}/health").text)


@pytest.mark.parametrize("kind", ["ray", TRITON])
def test_an_export_uses_its_own_modules_where_offpath_is_installed(
    model_store: Path, tmp_path: Path, kind: str
) -> None:
    with hosted(kind, model_store / "near-free.mar", tmp_path / "export") as said:
        assert Path(said["service"]).is_relative_to(tmp_path)
        assert Path(said["handler"]).is_relative_to(tmp_path)
        assert "archive" in Path(said["handler"]).parts
