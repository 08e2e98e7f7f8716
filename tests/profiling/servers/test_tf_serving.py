"""TensorFlow Serving by URL, against a server that speaks its REST protocol."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from offpath.archive.photographs import find_sources
from offpath.errors import ExpectedError
from offpath.profiling.load.model_under_test import (
    ModelUnderTest,
    classify_reference,
    load_model,
)
from offpath.profiling.load.reply_check import check_replies, make_checks
from offpath.profiling.servers.tf_serving import (
    URL_VARIABLE,
    TfServing,
    read_predictions,
)

MODEL_PATH = "/v1/models/classifier"


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


class Rest(BaseHTTPRequestHandler):
    """The two calls of https://www.tensorflow.org/tfx/serving/api_rest that we make."""

    model: ModelUnderTest

    def do_GET(self) -> None:
        self.reply(200 if self.path == MODEL_PATH else 404, {"model_version_status": []})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (instance,) = request["instances"]
        answer = classify_reference(self.model, base64.b64decode(instance["b64"]))
        probabilities = [0.0] * len(self.model.labels)
        probabilities[self.model.labels.index(answer.label)] = answer.probability
        is_call = self.path == f"{MODEL_PATH}:predict"
        self.reply(200 if is_call else 404, {"predictions": [probabilities]})

    def reply(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(model: ModelUnderTest) -> Iterator[str]:
    handler = type("Handler", (Rest,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{MODEL_PATH}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("ending", ["", "/", ":predict"])
def test_running_server_is_called_by_its_model_url(
    ending: str,
    url: str,
    model: ModelUnderTest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url + ending)
    server = TfServing(model, 2)
    photographs = [path.read_bytes() for path in find_sources()[:2]]
    assert server.call.wrap is not None
    checks = [
        (server.call.wrap(photo), answer) for photo, answer in make_checks(model, photographs)
    ]

    assert server.why_not() is None
    server.prepare(tmp_path / "tf-serving")
    with server.running() as running:
        assert check_replies(server.name, running.predict_url, server.call, checks) == 0


def test_url_of_something_else_is_refused_before_the_run(
    url: str, model: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url + "-of-another-name")

    assert "no model's status page" in str(TfServing(model, 2).why_not())


def test_url_where_nobody_listens_is_refused_before_the_run(
    model: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:9/v1/models/classifier")
    server = TfServing(model, 2)
    server.prepare(tmp_path / "tf-serving")

    assert "no answer" in str(server.why_not())
    with pytest.raises(ExpectedError, match="no answer"):
        with server.running():
            pass


def test_without_url_it_says_what_to_set(
    model: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)

    assert URL_VARIABLE in str(TfServing(model, 2).why_not())


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b'{"predictions": [[0.5]]}', id="other-number-of-classes"),
        pytest.param(b'{"predictions": [[0.5, 0.5], [1, 0]]}', id="two-predictions"),
        pytest.param(b'{"error": "broken"}', id="error"),
    ],
)
def test_other_answers_raise_what_the_check_expects(reply: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_predictions(reply, ["cat", "dog"])
