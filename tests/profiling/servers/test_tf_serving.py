"""TensorFlow Serving by URL, against a server that speaks its REST protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.archive.photographs import find_sources
from offpath.profiling.experiments.compare import check_replies, make_checks
from offpath.profiling.load.model_under_test import (
    ModelUnderTest,
    classify_reference,
    load_model,
)
from offpath.profiling.servers.tf_serving import URL_VARIABLE, TfServing
from tests.support.answering_server import answering_server

MODEL_PATH = "/v1/models/classifier"


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


@pytest.fixture(scope="module")
def url(model: ModelUnderTest) -> Iterator[str]:
    """Answers the two calls of https://www.tensorflow.org/tfx/serving/api_rest that we make."""

    def respond(path: str, body: bytes) -> tuple[int, bytes]:
        if path == MODEL_PATH:
            return 200, b'{"model_version_status": []}'
        if path != f"{MODEL_PATH}:predict":
            return 404, b""
        (instance,) = json.loads(body)["instances"]
        answer = classify_reference(model, base64.b64decode(instance["b64"]))
        probabilities = [0.0] * len(model.labels)
        probabilities[model.labels.index(answer.label)] = answer.probability
        return 200, json.dumps({"predictions": [probabilities]}).encode()

    with answering_server() as server:
        server.respond = respond
        yield f"{server.url}{MODEL_PATH}"


@pytest.mark.parametrize("ending", ["", "/", ":predict"])
def test_running_server_is_called_by_its_model_url(
    ending: str, url: str, model: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
