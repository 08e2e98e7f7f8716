from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decode import ORIENTATION_TAG
from offpath.handler.input_maker import InputMaker
from offpath.handler.reply import encode_error
from offpath.serving import client as client_module
from offpath.serving.client import (
    MAX_REPLY_BYTES,
    AsyncClient,
    Client,
    ModelNotNamed,
    Prediction,
    ServerError,
    ServerUnreachable,
)
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.support.answering_server import Answers
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")
Image = client_module.Image


def predict(image: Image, *arguments: Any, **options: Any) -> Prediction:
    with Client(*arguments, **options) as client:
        return client.predict(image)


def predict_async(image: Image, *arguments: Any, **options: Any) -> Prediction:
    async def run() -> Prediction:
        async with AsyncClient(*arguments, **options) as client:
            return await client.predict(image)

    return asyncio.run(run())


@pytest.mark.parametrize("predict", [predict, predict_async], ids=["sync", "asyncio"])
def test_prediction_has_everything_of_the_answer(
    answers: Answers, predict: Callable[..., Prediction]
) -> None:
    answers.headers = {"Server-Timing": "decode;dur=1.5, odd;dur=nan", "x-request-id": "abc"}
    prediction = predict(JPEG, answers.url, "cats")
    assert prediction.json() == {"cat": 0.75, "dog": 0.25}
    assert prediction.is_ok
    assert prediction.labels == [("cat", 0.75), ("dog", 0.25)]
    assert prediction.error is None
    assert prediction.server_timing == {"decode": 1.5}
    assert prediction.request_id == "abc"
    assert prediction.latency_ms > 0
    path, headers, body = answers.requests[0]
    assert (path, body) == ("/predictions/cats", JPEG)
    assert headers["content-type"] == "application/octet-stream"


INPUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "stretched-grey": {"resize": "stretch", "channels": 1, "mean": 0.5, "std": 0.5},
    "letterbox-bgr": {
        "resize": "letterbox",
        "channel_order": "bgr",
        "fill": [1, 2, 3],
        "mean": 0,
        "std": 1,
    },
    "turned": {"exif_orientation": True},
    "full-decode": {"decode": "exact"},
}


@pytest.mark.parametrize("settings", INPUTS.values(), ids=INPUTS)
def test_thin_client_sends_the_pixels_that_the_model_asks_for(
    answers: Answers, settings: dict[str, Any]
) -> None:
    exif = PillowImage.Exif()
    exif[ORIENTATION_TAG] = 6
    turned = encode(find_photograph("coffee").rgb, "JPEG", exif=exif)
    maker = InputMaker(HandlerConfig.from_mapping(settings, {}))
    wanted, _ = maker.make(turned)
    taken = []

    def respond(path: str, body: bytes) -> tuple[int, bytes]:
        try:
            taken.append(maker.make(body)[0])
        except ItemError as error:
            return error.status, encode_error(error).body
        return 200, b"{}"

    answers.respond = respond
    assert predict(turned, answers.url, "cats", thin=True).is_ok
    (pixels,) = taken
    # The transforms of client and server round differently.
    assert np.abs(pixels.astype(int) - wanted).mean() < 1
    assert len(answers.requests) == (1 if settings == {} else 2)
    with pytest.raises(ItemError):
        predict(b"junk", answers.url, thin=True)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (422, b'{"code": 422, "type": "T", "message": "broken"}', "broken"),
        (503, b"<html>", "Service Unavailable"),
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
    assert prediction.error == error
    assert prediction.labels == []
    assert (raised.value.code, raised.value.message) == (status, prediction.error)
    assert raised.value.type == ("T" if status == 422 else "")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
# More than any test waits.
LONG_S = 60.0
BOMB = gzip.compress(bytes(1 << 28))
GZIPPED = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB)
LATE = "timed out|it took longer than"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n%s\r\n" % (b"[" * 65536)
# Name -> how a reply begins, what follows for ever, the seconds between, and what a client says.
HOSTILE_REPLIES: dict[str, tuple[bytes, bytes, float, str]] = {
    "dripping-body": (CHUNKED, b"1\r\n[\r\n", 0.05, LATE),
    "dripping-headers": (b"HTTP/1.1 200 OK\r\nx-a: ", b"a", 0.05, LATE),
    "endless-informational": (b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.05, LATE),
    "endless-body": (CHUNKED, CHUNK, 0.0, "the reply has more than"),
    "gzip-bomb": (GZIPPED + BOMB, b"", 0.0, "is compressed"),
}


@guarantee(
    "Replies that never end or command the terminal",
    "serving/client.py",
    "                    if len(body) > MAX_REPLY_BYTES:",
    "                    if False:",
)
@pytest.mark.parametrize("name", HOSTILE_REPLIES)
def test_reply_that_never_ends_or_unfolds_is_an_error_in_time(answers: Answers, name: str) -> None:
    reply, again, pause_s, why = HOSTILE_REPLIES[name]
    answers.endless = reply, again, pause_s if again else LONG_S
    tracemalloc.start()
    began_s = time.monotonic()
    with pytest.raises(ServerUnreachable, match=f"no answer from {answers.url}: .*{why}"):
        predict(JPEG, answers.url, "cats", timeout_s=1.0 if pause_s else 20.0)
    took_s, (_, peak_bytes) = time.monotonic() - began_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 20
    assert peak_bytes < 3 * MAX_REPLY_BYTES


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"boxes": [1]}', id="another-kind-of-model"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(b'{"cat": NaN}', id="no-number"),
        pytest.param(b'{"message": [1], "type": {"a": 1}}', id="message-of-another-type"),
        pytest.param(b"\xff\xfe", id="no-text"),
    ],
)
def test_strange_body_is_a_prediction_without_labels(answers: Answers, body: bytes) -> None:
    answers.body, answers.headers = body, {"server-timing": "a;dur=inf"}
    prediction = predict(JPEG, answers.url, "cats")
    assert (prediction.labels, prediction.body, prediction.server_timing) == ([], body, {})
    assert prediction.is_ok
    if body.startswith(b"["):
        with pytest.raises(ValueError, match="nested too deeply"):
            prediction.json()
    answers.status = 400
    with pytest.raises(ServerError, match="^400: Bad Request$"):
        predict(JPEG, answers.url, "cats")


@pytest.mark.server
def test_one_of_several_models_must_be_named(server: TorchServe) -> None:
    with Client(server.inference_url) as client:
        with pytest.raises(ModelNotNamed, match="name the model"):
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


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_many_images_are_answered_in_order_a_bounded_number_at_once(
    answers: Answers, tmp_path: Path, kind: str, at_once: int
) -> None:
    together = threading.Barrier(at_once, timeout=20)
    lock, running, most = threading.Lock(), 0, 0

    def respond(path: str, body: bytes) -> tuple[int, bytes]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return 200, json.dumps({body.decode(): 1}).encode()

    os.mkfifo(tmp_path / "fifo.jpg")
    images: list[Image] = [b"%d" % number for number in range(2 * at_once)]
    answers.respond = respond

    def read(images: list[Image]) -> list[Prediction]:
        if kind == "sync":
            with Client(answers.url, "cats") as client:
                return list(client.predict_many(images, at_once))

        async def run() -> list[Prediction]:
            async with AsyncClient(answers.url, "cats") as client:
                return [one async for one in client.predict_many(iter(images), at_once)]

        return asyncio.run(run())

    found = [prediction.labels[0][0] for prediction in read(images)]
    assert found == [str(number) for number in range(2 * at_once)]
    assert most == at_once
    (unread,) = read([tmp_path / "fifo.jpg"])
    assert (unread.status, unread.is_ok) == (0, False)
    assert "not a regular file" in (unread.error or "")


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
