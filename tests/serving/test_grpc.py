"""gRPC with a client generated from TorchServe's own .proto: the same answers as over HTTP."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from offpath.serving.torchserve.launch import find_ts_home
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.images import jpeg

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.server
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(server: TorchServe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ask, Ask]]:
    """Yields `predict(body, model)` and the same as a stream; both return decoded answers."""
    folder, jar = tmp_path_factory.mktemp("proto"), "ts/frontend/model-server.jar"
    with zipfile.ZipFile(find_ts_home() / jar) as file:
        for name in ("inference.proto", "google/rpc/status.proto"):
            file.extract(name, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        messages, services = grpc.protos_and_services("inference.proto")
    with grpc.insecure_channel(f"127.0.0.1:{server.ports.grpc}") as channel:
        stub = services.InferenceAPIsServiceStub(channel)

        def request(body: bytes, model: str) -> Any:
            return messages.PredictionsRequest(model_name=model, input={"data": body})

        def predict(body: bytes, model: str = "near-free") -> Any:
            answer = stub.Predictions(request(body, model), timeout=30)
            return json.loads(answer.prediction)

        def stream(body: bytes, model: str = "near-free") -> Any:
            answers = stub.StreamPredictions(request(body, model), timeout=30)
            return [json.loads(answer.prediction) for answer in answers]

        yield predict, stream


def test_answers_are_those_of_http(ask: tuple[Ask, Ask], server: TorchServe) -> None:
    url = f"{server.inference_url}/predictions/near-free"
    over_http = httpx.post(url, content=jpeg()).json()
    assert ask[0](jpeg()) == pytest.approx(over_http, abs=1e-5)


@pytest.mark.parametrize("body", [b"junk of a client", b"", b"\xff\xd8" * 99])
def test_a_bad_items_status_is_the_field_code(
    ask: tuple[Ask, Ask], server: TorchServe, body: bytes
) -> None:
    url = f"{server.inference_url}/predictions/near-free"
    over_http = httpx.post(url, content=body)
    answer = ask[0](body)
    assert set(answer) == {"code", "type", "message"}
    assert answer["code"] == over_http.status_code
    assert answer["type"] == over_http.json()["type"]


def test_a_stream_has_one_answer_and_takes_no_worker_down(
    ask: tuple[Ask, Ask], server: TorchServe
) -> None:
    before = server.worker_pids()
    answers = [ask[1](body) for body in (jpeg(), b"junk", jpeg())]
    assert [len(answer) for answer in answers] == [1, 1, 1]
    assert answers[0][0] == pytest.approx(ask[0](jpeg()), abs=1e-5)
    assert answers[1][0]["code"] == 415
    assert server.worker_pids() == before
