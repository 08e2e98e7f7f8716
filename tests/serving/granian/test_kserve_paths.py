"""KServe's protocols on a real Granian, without and behind the front door.

`tritonclient` is the real one. KServe's own client and that of the Open Inference Protocol are not
among our packages; `slow` tests use them where they can be imported:

    pip install --target /tmp/clients kserve==0.21.0 open-inference-openapi==2.0.0.1
    OFFPATH_KSERVE_CLIENTS=/tmp/clients pytest -m slow tests/serving/granian/test_kserve_paths.py
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import load_model_source
from offpath.handler.wire_names import CLIENT_HEADER
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.service.kserve import LENGTH_HEADER
from offpath.serving.session import make_server
from tests.fuzz.costly_requests import PALETTE, png
from tests.support.eventually import MOST_S, eventually
from tests.support.front import FrontProcess, log_variables
from tests.support.granian import GranianProcess, granian
from tests.support.guarantees import guarantee
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.server
IMAGES = [encode(one.rgb.resize((320, 240)), "JPEG", quality=80) for one in PHOTOGRAPHS[:3]]
TEXTS = [base64.b64encode(image).decode() for image in IMAGES]
# Larger than what the door keeps in memory, as one image and as three.
LARGE = encode(PHOTOGRAPHS[1].rgb.resize((900, 700)), "PNG")
# Labels in an answer, by version.
LABELS = {"1.0": 5, "2.0": 3}
V1, V2 = "/v1/models/plain:predict", "/v2/models/plain/infer"


def build(store: Path, name: str, version: str) -> Path:
    source = load_model_source("near-free", None)
    handler = {"top_k": LABELS[version], "explanations": True, "metrics_interval_s": 0.2}
    limits = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4}
    config = make_model_config(load_preset("cpu"), limits, {**source.handler, **handler})
    spec = ArchiveSpec(name, version, source, source.labels, "the labels", config)
    made = build_archive(spec, store, force=True).path
    return made.rename(store / f"{name}-{version}.mar")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kserve")
    (folder / "store").mkdir()
    for name, version in (("plain", "1.0"), ("plain", "2.0"), ("split", "1.0"), ("split", "2.0")):
        build(folder / "store", name, version)
    return folder


@pytest.fixture(scope="module")
def door(folder: Path) -> Iterator[GranianProcess]:
    """Serves `plain` with a shadow, and `split` whose canary answers everything."""
    options = ["plain-1.0", "plain-2.0", "split-1.0", "split-2.0", "--explanations"]
    options += ["--shadow", "plain=2.0:100%", "--canary", "split=2.0:100%"]
    options += ["--limit", "client-connections=8"]
    with granian(folder / "store", folder / "logs", *options, **log_variables(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def direct(folder: Path) -> Iterator[str]:
    settings = ServerSettings(
        model_store=folder / "store",
        models=("plain-1.0.mar",),
        server="granian",
        inference_port=0,
        metrics_port=0,
        overrides={"job_queue_size": "16"},
    )
    with make_server(settings) as running:
        yield running.inference_url


@pytest.fixture(params=["direct", "door"])
def url(request: pytest.FixtureRequest) -> str:
    """The base URL of the server without, and of that behind the door."""
    running = request.getfixturevalue(request.param)
    return running.url if isinstance(running, FrontProcess) else str(running)


def predict(url: str, image: bytes) -> dict[str, float]:
    answer: dict[str, float] = httpx.post(f"{url}/predictions/plain", content=image).json()
    return answer


def nest(content: bytes, times: int) -> bytes:
    """Encodes as base64 again and again."""
    for _ in range(times):
        content = base64.b64encode(content)
    return content


def same(answer: dict[str, float], other: dict[str, float]) -> bool:
    return list(answer) == list(other) and answer == pytest.approx(other, abs=1e-5)


def test_v1_answers_as_predictions_does(url: str) -> None:
    instances: list[Any] = [TEXTS[0], {"data": TEXTS[1]}, {"image_bytes": {"b64": TEXTS[2]}}]
    reply = httpx.post(url + V1, json={"instances": instances})
    assert reply.status_code == 200, reply.text
    answers = reply.json()["predictions"]
    assert all(same(a, predict(url, image)) for a, image in zip(answers, IMAGES, strict=True))
    assert "decode;dur=" in reply.headers["server-timing"]
    assert len(reply.headers["x-request-id"]) == 36


@pytest.mark.parametrize("images", [1, 4])
def test_a_large_body_arrives(url: str, images: int) -> None:
    instances = [{"data": base64.b64encode(LARGE).decode()}] * images
    answers = httpx.post(url + V1, json={"instances": instances}).json()["predictions"]
    assert len(answers) == images and same(answers[-1], predict(url, LARGE))


@pytest.mark.parametrize("path", ["/v1/models/plain:explain", "/v2/models/plain/explain"])
def test_explanations(url: str, path: str) -> None:
    body: dict[str, Any] = {"instances": TEXTS[:1]}
    if "v2" in path:
        tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": TEXTS[:1]}
        body = {"inputs": [tensor]}

    def ask() -> httpx.Response | None:
        reply = httpx.post(url + path, json=body)
        return None if reply.status_code == 429 else reply

    answer = eventually(ask).json()
    if "v2" in path:
        (output,) = answer["outputs"]
        assert output["name"] == "reply"
        answer = {"explanations": list(map(json.loads, output["data"]))}
    assert np.shape(answer["explanations"]) == (1, 3, 224, 224)


def test_pages_of_v1(url: str) -> None:
    assert "plain" in httpx.get(f"{url}/v1/models").json()["models"]
    assert httpx.get(f"{url}/v1/models/plain").json() == {"name": "plain", "ready": True}
    assert httpx.get(f"{url}/v1/models/other").status_code == 404


@pytest.fixture
def triton(url: str) -> Iterator[InferenceServerClient]:
    client = InferenceServerClient(urlsplit(url).netloc)
    yield client
    client.close()


def image_input(images: list[bytes], binary: bool = True) -> InferInput:
    given = InferInput("image", [len(images)], "BYTES")
    given.set_data_from_numpy(np.array(images, dtype=object), binary_data=binary)
    return given


def test_tritons_client_reads_the_metadata(
    url: str, direct: str, triton: InferenceServerClient
) -> None:
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("plain") and triton.is_model_ready("plain", "1.0")
    assert not triton.is_model_ready("other") and not triton.is_model_ready("plain", "3.0")
    metadata = triton.get_server_metadata()
    assert metadata == {"name": "offpath", "version": "", "extensions": ["binary_tensor_data"]}
    versions = ["1.0"] if url == direct else ["1.0", "2.0"]
    for version in ("", "1.0"):
        metadata = triton.get_model_metadata("plain", version)
        assert (metadata["name"], metadata["versions"]) == ("plain", versions)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("version", ["", "1.0"])
def test_tritons_client_gets_the_replies(
    url: str, triton: InferenceServerClient, is_binary: bool, version: str
) -> None:
    # Without binary data, BYTES are text.
    images = IMAGES if is_binary else [text.encode() for text in TEXTS]
    outputs = None if is_binary else [InferRequestedOutput("reply", binary_data=False)]
    result = triton.infer(
        "plain",
        [image_input(images, is_binary)],
        model_version=version,
        outputs=outputs,
        request_id="mine",
        parameters={"own": 1},
    )
    assert result.get_response()["id"] == "mine"
    assert result.get_response()["model_version"] == "1.0"
    for reply, image in zip(result.as_numpy("reply"), IMAGES, strict=True):
        assert same(json.loads(reply), predict(url, image))


def test_tritons_client_shows_which_image_is_bad(triton: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="instance 1: .*format") as caught:
        triton.infer("plain", [image_input([IMAGES[0], b"no image"])])
    assert caught.value.status() == "415"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.environ.get("OFFPATH_KSERVE_CLIENTS")
    if folder is None:
        pytest.skip("OFFPATH_KSERVE_CLIENTS names no folder with the clients")
    # Last, so that our own packages win.
    monkeypatch.setattr(sys, "path", [*sys.path, folder])


@pytest.mark.slow
@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize("is_binary", [True, False])
def test_kserves_own_client(url: str, is_binary: bool) -> None:
    import kserve

    async def ask() -> None:
        v1 = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1"))
        assert await v1.is_model_ready(url, "plain")
        answers = await v1.infer(url, {"instances": TEXTS}, "plain")
        check(answers["predictions"])
        v2 = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        assert await v2.is_server_ready(url) and await v2.is_server_live(url)
        assert await v2.is_model_ready(url, "plain")
        tensor = kserve.InferInput("image", [len(IMAGES)], "BYTES")
        elements = IMAGES if is_binary else [text.encode() for text in TEXTS]
        tensor.set_data_from_numpy(np.array(elements, dtype=object), binary_data=is_binary)
        answer = await v2.infer(url, kserve.InferRequest("plain", [tensor], "7"), "plain")
        assert (answer.id, answer.model_name) == ("7", "plain")
        check(map(json.loads, answer.outputs[0].as_numpy()))
        tensor.set_data_from_numpy(np.array([b"bm8="] * len(IMAGES), dtype=object))
        with pytest.raises(httpx.HTTPStatusError, match="instance 0: .*415 Unsupported"):
            await v2.infer(url, kserve.InferRequest("plain", [tensor]), "plain")

    def check(answers: Iterable[dict[str, float]]) -> None:
        assert all(same(a, predict(url, image)) for a, image in zip(answers, IMAGES, strict=True))

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.usefixtures("clients")
def test_the_open_inference_client(url: str) -> None:
    from open_inference.openapi import InferenceRequest, RequestInput, TensorData
    from open_inference.openapi.client import OpenInferenceClient

    client = OpenInferenceClient(base_url=url)
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness("plain")
    client.check_model_version_readiness("plain", "1.0")
    assert "binary_tensor_data" in client.read_server_metadata().extensions
    assert client.read_model_metadata("plain").outputs[0].name == "reply"
    data = TensorData(__root__=TEXTS)
    image = RequestInput(name="image", shape=[len(TEXTS)], datatype="BYTES", data=data)
    asked = InferenceRequest(id="7", inputs=[image])
    for answer in (
        client.model_infer("plain", request=asked),
        client.model_version_infer("plain", "1.0", request=asked),
    ):
        assert (answer.id, answer.model_version) == ("7", "1.0")
        replies = map(json.loads, answer.outputs[0].data.__root__)
        assert all(same(a, predict(url, image)) for a, image in zip(replies, IMAGES, strict=True))


@guarantee("A bad item or a time-out in a batch")
def test_a_bad_image_fails_its_own_request_alone(url: str) -> None:
    bodies = [[TEXTS[0], TEXTS[1]], [TEXTS[0], "bm8gaW1hZ2U="], [TEXTS[2]]]
    for _ in range(4):
        with ThreadPoolExecutor(3) as pool:
            send = [pool.submit(httpx.post, url + V1, json={"instances": one}) for one in bodies]
        first, bad, last = (one.result() for one in send)
        assert (first.status_code, bad.status_code, last.status_code) == (200, 415, 200)
        error = bad.json()
        assert error["type"] == "UnsupportedFormat" and error["code"] == 415
        assert error["error"] == error["message"]
        assert error["message"].startswith("instance 1: ")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param(V1, b"", 400, id="empty"),
        pytest.param(V1, b'{"instances": [""]}', 400, id="empty-image"),
        pytest.param(V1, b"[" * 100_000, 400, id="deep"),
        pytest.param(V1, b'{"instances": [%b0]}' % (b"0," * 1_000_000), 400, id="a-million"),
        pytest.param(V1, b'{"instances": [%b0]}' % (b"0," * 1_000), 400, id="a-thousand"),
        pytest.param(V1, bytes(100_000_000), 413, id="100-mb"),
        pytest.param(V2, bytes(100_000_000), 413, id="v2-100-mb"),
        pytest.param(V2, b'{"inputs": []}', 400, id="v2-none"),
        pytest.param("/v1/models/other:predict", b"{}", 404, id="other"),
        pytest.param("/v2/models/plain/versions/3.0/infer", b"{}", 404, id="version"),
        pytest.param("/v1/models/plain:train", b"{}", 404, id="verb"),
    ],
)
def test_wrong_requests_get_a_reason(url: str, path: str, body: bytes, status: int) -> None:
    reply = httpx.post(url + path, content=body)
    assert reply.status_code == status, reply.text
    assert reply.json()["code"] == status and reply.json()["message"]
    assert httpx.post(url + V1, json={"instances": TEXTS[:1]}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        pytest.param("POST", "/predictions/plian", "plian", id="model"),
        pytest.param("POST", "/predictions/plain/3.0", "plain/3.0", id="version"),
        pytest.param("POST", "/explanations/plian", "plian", id="explanation"),
        pytest.param("POST", "/v1/models/plian:predict", "plian", id="v1"),
        pytest.param("GET", "/v1/models/plian", "plian", id="v1-get"),
        pytest.param("POST", "/v2/models/plain/versions/3.0/infer", "plain/3.0", id="v2-version"),
        pytest.param("GET", "/v2/models/plian", "plian", id="v2-get"),
        pytest.param("GET", "/v2/models/plain/versions/3.0/ready", "plain/3.0", id="v2-ready"),
    ],
)
def test_who_asks_for_another_model_hears_which_are_served(
    url: str, direct: str, method: str, path: str, asked: str
) -> None:
    served = "plain (1.0)" if url == direct else "plain (1.0, 2.0), split (1.0, 2.0)"
    reply = httpx.request(method, url + path)
    assert (reply.status_code, reply.json()["type"]) == (404, "NotFound")
    assert reply.json()["message"] == f"no model {asked!r}; served: {served}"


MILLION = 1_000_000


def make_bomb() -> bytes:
    """Returns base64 of 64 million pixels, more than an archive accepts."""
    return base64.b64encode(png(8000, 8000, 8, PALETTE, 8, False))


def v1_of(text: bytes) -> bytes:
    return b'{"instances": ["%b"]}' % text


def v2_of(tensor: bytes, after: bytes = b"") -> bytes:
    return b'{"inputs": [{"shape": [1], "datatype": "BYTES", %b}]%b}' % (tensor, after)


def with_binary(declared: int, size: int, data: bytes, length: int = 0) -> dict[str, Any]:
    """Makes a body whose parts may have wrong lengths.

    Args:
        declared: added to the length of the JSON.
        size: what the JSON says of the tensor's data.
        data: of the tensor, after the 4 bytes of its only element's length.
        length: that element's length; 0 for the right one.
    """
    text = v2_of(b'"parameters": {"binary_data_size": %d}' % size)
    content = text + (length or len(data)).to_bytes(4, "little") + data
    return {"content": content, "headers": {LENGTH_HEADER: str(len(text) + declared)}}


# Path, arguments for httpx, status.
COSTLY: dict[str, tuple[str, Callable[[], dict[str, Any]], int]] = {
    "100-mb": (V1, lambda: {"content": v1_of(b"A" * 10**8)}, 413),
    "100-mb-in-chunks": (V1, lambda: {"content": [bytes(MILLION)] * 100}, 413),
    "million-inputs": (V2, lambda: {"content": b'{"inputs": [%b0]}' % (b"{}," * MILLION)}, 400),
    "million-elements": (V2, lambda: {"content": v2_of(b'"data": [%b0]' % (b"0," * MILLION))}, 400),
    "million-outputs": (
        V2,
        lambda: {"content": v2_of(b'"data": ["aa"]', b', "outputs": [%b0]' % (b"{}," * MILLION))},
        400,
    ),
    "deep": (V2, lambda: {"content": v2_of(b'"data": ' + b"[" * 15_000 + b"]" * 15_000)}, 400),
    "deep-shape": (V2, lambda: {"content": v2_of(b'"shape": ' + b"[" * 900 + b"]" * 900)}, 400),
    "json-beyond-the-body": (V2, lambda: with_binary(MILLION, 104, bytes(100)), 400),
    "json-too-short": (V2, lambda: with_binary(-5, 104, bytes(100)), 400),
    "json-too-long": (V2, lambda: with_binary(5, 104, bytes(100)), 400),
    "data-beyond-the-body": (V2, lambda: with_binary(0, 10**12, bytes(100)), 400),
    "data-too-short": (V2, lambda: with_binary(0, 99, bytes(100)), 400),
    "element-of-4-gb": (V2, lambda: with_binary(0, 104, bytes(100), 2**32 - 1), 400),
    "million-empty-elements": (
        V2,
        lambda: with_binary(0, 4 * MILLION + 4, bytes(4 * MILLION), 4),
        400,
    ),
    "line-ends": (V1, lambda: {"content": v1_of(rb"\n" * 15 * MILLION)}, 400),
    "escapes": (V1, lambda: {"content": v1_of(rb"\u0041" * 5 * MILLION)}, 415),
    "wide": (V1, lambda: {"content": v1_of(b"A" * 20 * MILLION + rb"\ud83d\ude00")}, 400),
    "base64-in-base64": (V1, lambda: {"content": v1_of(nest(b"no image", 5))}, 415),
    "pixels": (V1, lambda: {"json": {"instances": [make_bomb().decode()] * 8}}, 413),
    "v2-pixels": (V2, lambda: {"content": v2_of(b'"data": ["%b"]' % make_bomb())}, 413),
}


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("name", COSTLY)
def test_costly_requests_are_refused(url: str, name: str) -> None:
    path, make, status = COSTLY[name]
    reply = httpx.post(url + path, **make(), timeout=MOST_S)
    assert reply.status_code == status, reply.text
    assert reply.json()["code"] == status and reply.json()["message"].isascii()
    assert httpx.post(url + V1, json={"instances": TEXTS[:1]}).status_code == 200


def test_a_get_is_no_prediction(url: str) -> None:
    assert httpx.get(url + V1).status_code == 405
    assert httpx.get(url + V2).status_code == 405


def test_more_images_than_the_queue_has_room_for_are_refused(direct: str) -> None:
    reply = httpx.post(direct + V1, json={"instances": TEXTS * 3})
    assert (reply.status_code, reply.json()["type"]) == (400, "BadEnvelope")
    assert "more than 8 images" in reply.json()["error"]


@guarantee(
    "Forged headers, names and keys",
    "serving/conf/nginx.conf",
    "proxy_set_header {{ names.CLIENT_HEADER }}",
    "# {{ names.CLIENT_HEADER }}",
)
def test_the_door_counts_images_whatever_a_client_says_of_itself(door: GranianProcess) -> None:
    forged = {CLIENT_HEADER: "192.0.2.1 1000 1000"}
    statuses = []
    for images in (8, 9):
        body = {"instances": (TEXTS * 3)[:images]}
        statuses.append(httpx.post(door.url + V1, json=body, headers=forged).status_code)
    assert statuses == [200, 400]


def test_each_image_has_a_record_and_so_has_its_copy(door: GranianProcess, folder: Path) -> None:
    image = {"name": "image", "shape": [2], "datatype": "BYTES", "data": TEXTS[:2]}
    bodies = {V1: {"instances": TEXTS[:2]}, V2: {"inputs": [image]}}
    for path, body in bodies.items():
        reply = httpx.post(door.url + path, json=body)
        own_id = reply.headers["x-request-id"]
        if path == V2:
            assert reply.json()["id"] == own_id

        def find() -> list[tuple[str, str]]:
            found = []
            for spool in (folder / "spool").rglob("*.spool"):
                records = map(json.loads, spool.read_bytes().splitlines())
                found += [(r["event_id"], r["version"]) for r in records]
            return sorted(one for one in found if one[0].startswith(own_id))

        expected = [(f"{own_id}.{n}", version) for n in (0, 1) for version in LABELS]
        eventually(lambda: find() == expected)


@pytest.mark.parametrize("path", ["/v1/models/split:predict", "/v2/models/split/infer"])
def test_a_canary_answers_its_share(door: GranianProcess, path: str) -> None:
    image = {"name": "image", "shape": [1], "datatype": "BYTES", "data": TEXTS[:1]}
    body = {"instances": TEXTS[:1], "inputs": [image]}
    answer = httpx.post(door.url + path, json=body).json()
    if "v1" in path:
        assert len(answer["predictions"][0]) == LABELS["2.0"]
    else:
        assert answer["model_version"] == "2.0"
        fixed = httpx.post(f"{door.url}/v2/models/split/versions/1.0/infer", json=body).json()
        assert fixed["model_version"] == "1.0"


def test_the_door_lists_all_models(door: GranianProcess) -> None:
    assert httpx.get(f"{door.url}/v1/models").json() == {"models": ["plain", "split"]}
