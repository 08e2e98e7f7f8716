"""KServe's protocols on a real Granian, without and behind the front door."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from tests.guarantees import guarantee
from tests.support.costly import PALETTE, png
from tests.support.eventually import eventually
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.server
IMAGES = [encode(one.rgb.resize((320, 240)), "JPEG", quality=80) for one in PHOTOGRAPHS[:3]]
TEXTS = [base64.b64encode(image).decode() for image in IMAGES]
# Larger than what the door keeps in memory, as one image and as three.
LARGE = encode(PHOTOGRAPHS[1].rgb.resize((900, 700)), "PNG")
V1, V2 = "/v1/models/near-free:predict", "/v2/models/near-free/infer"


@pytest.fixture(params=["granian", "granian_door"])
def url(request: pytest.FixtureRequest) -> str:
    """The base URL of the server without, and of that behind the door."""
    return str(request.getfixturevalue(request.param).url)


def predict(url: str, image: bytes) -> dict[str, float]:
    answer: dict[str, float] = httpx.post(f"{url}/predictions/near-free", content=image).json()
    return answer


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


@pytest.mark.parametrize("path", ["/v1/models/near-free:explain", "/v2/models/near-free/explain"])
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
    assert "near-free" in httpx.get(f"{url}/v1/models").json()["models"]
    assert httpx.get(f"{url}/v1/models/near-free").json() == {"name": "near-free", "ready": True}
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


def test_tritons_client_reads_the_metadata(triton: InferenceServerClient) -> None:
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("near-free") and triton.is_model_ready("near-free", "1.0")
    assert not triton.is_model_ready("other") and not triton.is_model_ready("near-free", "3.0")
    metadata = triton.get_server_metadata()
    assert metadata == {"name": "offpath", "version": "", "extensions": ["binary_tensor_data"]}
    for version in ("", "1.0"):
        metadata = triton.get_model_metadata("near-free", version)
        assert (metadata["name"], metadata["versions"]) == ("near-free", ["1.0"])


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("version", ["", "1.0"])
def test_tritons_client_gets_the_replies(
    url: str, triton: InferenceServerClient, is_binary: bool, version: str
) -> None:
    # Without binary data, BYTES are text.
    images = IMAGES if is_binary else [text.encode() for text in TEXTS]
    outputs = None if is_binary else [InferRequestedOutput("reply", binary_data=False)]
    result = triton.infer(
        "near-free",
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


# More pixels than an archive accepts.
BOMB = base64.b64encode(png(8000, 8000, 8, PALETTE, 8, False))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param(V1, b"", 400, id="empty"),
        pytest.param(V1, b'{"instances": [""]}', 400, id="empty-image"),
        pytest.param(V1, b'{"instances": ["%b"]}' % (rb"\u0041" * 5_000_000), 415, id="escapes"),
        pytest.param(V1, b'{"instances": ["%b"]}' % BOMB, 413, id="pixels"),
        pytest.param(V1, bytes(100_000_000), 413, id="100-mb"),
        pytest.param(V1, [bytes(1_000_000)] * 100, 413, id="100-mb-in-chunks"),
        pytest.param(V2, b'{"inputs": [{"shape": %b}]}' % (b"[" * 9_000), 400, id="v2-deep"),
        pytest.param("/v1/models/near-free:train", b"{}", 404, id="verb"),
    ],
)
def test_wrong_and_costly_requests_get_a_reason(
    url: str, path: str, body: bytes | list[bytes], status: int
) -> None:
    """tests/serving/service/test_kserve.py has many more."""
    reply = httpx.post(url + path, content=body)
    assert reply.status_code == status, reply.text
    assert reply.json()["code"] == status and reply.json()["message"].isascii()
    assert httpx.post(url + V1, json={"instances": TEXTS[:1]}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        pytest.param("POST", "/predictions/naer-free", "naer-free", id="model"),
        pytest.param("POST", "/predictions/near-free/3.0", "near-free/3.0", id="version"),
        pytest.param("POST", "/v1/models/naer-free:predict", "naer-free", id="v1"),
        pytest.param(
            "POST", "/v2/models/near-free/versions/3.0/infer", "near-free/3.0", id="v2-version"
        ),
        pytest.param(
            "GET", "/v2/models/near-free/versions/3.0/ready", "near-free/3.0", id="v2-ready"
        ),
    ],
)
def test_who_asks_for_another_model_hears_which_are_served(
    url: str, method: str, path: str, asked: str
) -> None:
    reply = httpx.request(method, url + path)
    assert (reply.status_code, reply.json()["type"]) == (404, "NotFound")
    start, _, served = reply.json()["message"].partition("; served: ")
    assert start == f"no model {asked!r}" and "near-free (1.0)" in served
