from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offpath.handler.errors import ItemError
from offpath.handler.image.decode import DecodeOptions, decode_image
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from offpath.handler.request.npy import read_npy
from offpath.serving import client as client_module
from offpath.serving.client import (
    Client,
    ModelNotNamed,
    ServerError,
    ServerUnreachable,
)
from offpath.serving.torchserve.server import TorchServe
from tests.support.answering_server import Answers, answering_server
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answering_server() as server:
        yield server


def test_prediction_has_everything_of_the_answer(answers: Answers) -> None:
    answers.headers = {"Server-Timing": "decode;dur=1.5", "x-request-id": "abc"}
    with Client(answers.url, "cats") as client:
        prediction = client.predict(JPEG)
    assert prediction.is_ok
    assert prediction.labels == [("cat", 0.75), ("dog", 0.25)]
    assert prediction.error is None
    assert prediction.server_timing == {"decode": 1.5}
    assert prediction.request_id == "abc"
    assert prediction.latency_ms > 0
    path, headers, body = answers.requests[0]
    assert (path, body) == ("/predictions/cats", JPEG)
    assert headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("kind", [str, Path])
def test_file_is_sent_unchanged(answers: Answers, tmp_path: Path, kind: type) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(JPEG)
    with Client(answers.url) as client:
        client.predict(kind(file))
        with pytest.raises(FileNotFoundError):
            client.predict(kind(tmp_path / "missing.jpg"))
    assert [body for _, _, body in answers.requests] == [JPEG]


def test_thin_client_sends_the_models_pixels(answers: Answers) -> None:
    with Client(answers.url, thin=True) as client:
        client.predict(JPEG)
        with pytest.raises(ItemError):
            client.predict(b"junk")
    (_, headers, body), *rest = answers.requests
    assert rest == []
    assert headers["content-type"] == "application/x-npy"
    exact = transform_image(decode_image(JPEG, DecodeOptions()), InputGeometry())
    np.testing.assert_array_equal(read_npy(body, (224, 224, 3)), exact)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (422, b'{"code": 422, "type": "T", "message": "broken"}', "broken"),
        (413, b"", "Request Entity Too Large|Content Too Large"),
        (503, b"<html>", "Service Unavailable"),
        (404, b"[1]", "Not Found"),
        (500, b'{"code": 500}', "Internal Server Error"),
    ],
)
def test_refusal_is_an_answer_with_the_servers_message(
    answers: Answers, status: int, body: bytes, error: str
) -> None:
    answers.status, answers.body = status, body
    with Client(answers.url, "cats") as client:
        prediction = client.try_predict(JPEG)
        with pytest.raises(ServerError) as raised:
            client.predict(JPEG)
    assert not prediction.is_ok
    assert prediction.status == status
    assert prediction.error in error.split("|")
    assert prediction.labels == []
    assert (raised.value.code, raised.value.message) == (status, prediction.error)
    assert raised.value.type == ("T" if status == 422 else "")


@pytest.mark.server
def test_one_of_several_models_must_be_named(server: TorchServe) -> None:
    with Client(server.inference_url) as client:
        with pytest.raises(ModelNotNamed, match="name the model"):
            client.predict(JPEG)


@pytest.mark.parametrize("body", [b"", b"[1, 2]", b'{"boxes": [1]}'])
def test_answer_of_another_kind_of_model_has_no_labels(answers: Answers, body: bytes) -> None:
    answers.body = body
    with Client(answers.url) as client:
        prediction = client.predict(JPEG)
    assert prediction.is_ok
    assert prediction.labels == []
    assert prediction.body == body


def test_nothing_listening_is_server_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client(url) as client, pytest.raises(ServerUnreachable, match=url):
            client.predict(JPEG)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the pauses of a client instead of waiting."""
    made: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", made.append)
    return made


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_failure_is_retried_as_often_as_asked(
    answers: Answers, pauses: list[float], status: int
) -> None:
    answers.status = status
    with Client(answers.url, "cats", retries=3) as client:
        prediction = client.try_predict(JPEG)
    assert (prediction.status, prediction.tries) == (status, 4)
    assert [body for _, _, body in answers.requests] == [JPEG] * 4
    assert len(pauses) == 3 and pauses == sorted(pauses)


def test_nothing_is_retried_by_default_or_after_a_refusal(
    answers: Answers, pauses: list[float]
) -> None:
    answers.status = 503
    with Client(answers.url, "cats") as client:
        assert client.try_predict(JPEG).tries == 1
    answers.status = 422
    with Client(answers.url, "cats", retries=3) as client:
        assert client.try_predict(JPEG).tries == 1
    answers.status, answers.body = 500, b'{"code": 500, "type": "WorkerDied", "message": "died"}'
    with Client(answers.url, "cats", retries=3) as client:
        assert client.try_predict(JPEG).tries == 1
    assert (len(answers.requests), pauses) == (3, [])


def test_next_host_is_asked_at_once_and_stays_in_use(answers: Answers, pauses: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client([gone, answers.url], retries=1) as client:
            assert [client.predict(JPEG).tries for _ in range(3)] == [2, 1, 1]
        with Client([gone, gone], retries=5) as client:
            with pytest.raises(ServerUnreachable, match=gone):
                client.predict(JPEG)
    assert len(pauses) == 2


def test_client_imports_neither_torch_nor_modules_beside_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import sys
from offpath.client import Client
from offpath.serving.client import make_npy
heavy = {"torch", "torchvision", "ts", "captum", "aiobotocore", "boto3", "yaml"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
""")
    # A user's own modules by the names of our folders.
    for name in ("handler", "archive", "serving", "profiling"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong one')")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_model_must_be_named_where_a_server_lists_none(answers: Answers) -> None:
    answers.status, answers.body = 404, b'{"message": "there is /predictions/MODEL"}'
    with Client(answers.url) as client:
        with pytest.raises(ModelNotNamed, match="does not list its models") as raised:
            client.predict(JPEG)
    assert raised.value.names == []
    asked = [path for path, _, _ in answers.requests]
    assert asked == ["/invocations", "/models", "/predictions/classifier"]
