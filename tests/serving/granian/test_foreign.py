"""Archives that are not offpath's: a real TorchServe and Granian give equal replies."""

from __future__ import annotations

import base64
import json
import operator
import re
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from offpath.errors import WrongOption
from offpath.serving.server.management import open_http
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import make_server
from tests.support.echo_archive import write_archive
from tests.support.eventually import MOST_S, eventually
from tests.support.front import FrontProcess, front
from tests.support.guarantees import guarantee
from tests.support.images import jpeg
from tests.support.stock_archive import make_stock

pytestmark = pytest.mark.server
# Answers what it was given, or does what the first request of a batch says.
ECHO = """
import json
import os
import sys

import torch
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.utils.util import PredictionException


def show(value):
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, len(value), bytes(value[:40]).decode("latin-1")]
    return value


def handle(data, context):
    if data is None:
        context.loaded = [os.path.basename(os.getcwd()) == os.path.basename(
            context.system_properties["model_dir"]), os.getcwd() in sys.path]
        return None
    row, said = data[0], context.get_request_header(0, "x-do")
    if said == "tell":
        return [{"rows": {k: show(v) for k, v in row.items()},
                 "types": {k: context.get_request_header(0, k) for k in row},
                 "header": context.get_request_header(0, "x-mine"),
                 "explain": context.get_request_header(0, "explain"),
                 "size": context.system_properties["batch_size"],
                 "gpu": context.system_properties["gpu_id"],
                 "loaded": context.loaded, "config": context.model_yaml_config}]
    if said == "headers":
        context.set_response_content_type(0, "text/plain")
        context.set_response_header(0, "X-Own", "1")
        context.set_response_status(code=418, phrase="Teapot", idx=0)
        return ["short and stout"]
    if said == "metrics":
        context.metrics.add_counter("Seen", 2)
        context.metrics.add_time("Took", 7.5, unit="ms")
        context.metrics.add_percent("Share", 50)
        return ["counted"]
    if said == "set":
        told = json.loads(bytes(row["body"]))
        context.set_response_status(**{"code": 200, "idx": 0, **told.get("status", {})})
        for key, value in told.get("headers", {}).items():
            context.set_response_header(0, key, value)
        for name, value, labels in told.get("metrics", []):
            dimensions = [Dimension(*one) for one in labels.items()]
            context.metrics.add_metric(name, value, "count", dimensions=dimensions)
        return ["set"]
    if said == "many metrics":
        for number in range(400):
            labels = [Dimension("Text", f"{number} " + 5000 * "x")]
            context.metrics.add_metric("Many", 1, "count", dimensions=labels)
        return ["counted"]
    if said == "kind":
        kind = [context.get_request_header(0, key) for key in ("explain", "describe")]
        return [kind for _ in data]
    if said == "size":
        return [len(data) for _ in data]
    if said == "modules":
        return [[name for name in HEAVY if name in sys.modules]]
    if said == "stream":
        send_intermediate_predict_response(["part"], context.request_ids, "ok", 200, context)
    if said in ERRORS:
        raise ERRORS[said]
    return REPLIES.get(said, [b"unknown"])


HEAVY = ["captum", "torch._dynamo", "openvino.torch", "onnxruntime"]
ERRORS = {
    "fail": ValueError("secret"),
    "memory": MemoryError(),
    "cuda": RuntimeError("CUDA error: out of memory"),
    "refuse": PredictionException("not today", 422),
}
REPLIES = {
    "bytes": [b"\\x00\\xff"],
    "text": ["caf\\u00e9"],
    "dict": [{"b": 1, "a": [0.5, None]}],
    "number": [3],
    "tensor": [torch.arange(3)],
    "set": [{1, 2}],
    "none": [None],
    "two": ["a", "b"],
    "nothing": [],
    "no list": "a text",
}
"""
# A class in a module whose name is our package's.
OWN_CLASS = """
from ts.torch_handler.base_handler import BaseHandler

import helper


class Mine(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [helper.WORD for _ in data]
"""
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(48, 7)

    def forward(self, images):
        pooled = torch.nn.functional.adaptive_avg_pool2d(images, 4)
        return self.classifier(pooled.flatten(1))
"""
# Fails as it is told.
SICK = """
import os
import signal
import sys
import time

held = []


def handle(data, context):
    said = context.get_request_header(0, "x-do") if data else None
    if said == "raise":
        raise ValueError("secret")
    if said == "exit":
        sys.exit(1)
    if said == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if said == "hang":
        time.sleep(3600)
    if said == "leak":
        held.append(bytearray(os.urandom(1)) * 20_000_000)
        held.extend(open(os.devnull) for _ in range(20))
    return ["done"] * len(data or ())
"""
# What that handler does -> its requests, and how many of them fail.
FAULTS = {"raise": (5, 5), "exit": (1, 1), "kill": (1, 1), "hang": (1, 1), "leak": (20, 0)}
CONFIG = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 50, "mine": {"a": 1}}
PHOTOGRAPH = jpeg(size=(320, 240))
SAMPLE = re.compile(r'[a-zA-Z_:]\w*\{([a-zA-Z_]\w*="([^"\\]|\\["\\n])*",)*\} [-+.\w]+', re.ASCII)
SET = {"x-do": "set", "content-type": "application/octet-stream"}
PLAIN = "bytes text dict number tensor set none two nothing fail memory cuda refuse headers"
# What the handler does, and arguments for httpx.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "body": ("tell", {"content": PHOTOGRAPH, "headers": {"Content-Type": "image/jpeg"}}),
    "put": ("tell", {"content": PHOTOGRAPH, "method": "PUT"}),
    "json": ("tell", {"json": {"instances": [{"a": 1}]}}),
    "json-bad": ("tell", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
    "json-charset": (
        "tell",
        {"content": b"[1]", "headers": {"Content-Type": "application/json; charset=utf-8"}},
    ),
    "text": ("tell", {"content": "caf\u00e9", "headers": {"Content-Type": "text/plain"}}),
    "text-bad": ("tell", {"content": b"\xff", "headers": {"Content-Type": "text/csv"}}),
    "form-file": ("tell", {"files": {"data": ("a.jpg", PHOTOGRAPH, "image/jpeg")}}),
    "form-untyped": (
        "tell",
        {
            "content": b'--B\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'
            b"\x00\xff\r\n--B--\r\n",
            "headers": {"Content-Type": "multipart/form-data; boundary=B"},
        },
    ),
    "form-empty-type": ("tell", {"files": {"data": ("a.bin", b"\x00\xff", "")}}),
    "form-text-file": ("tell", {"files": {"data": ("a.txt", b"words", "text/plain")}}),
    "form-field": ("tell", {"files": {"data": (None, b"words")}}),
    "form-two": (
        "tell",
        {"files": [("a", (None, b"1")), ("data", ("a.jpg", PHOTOGRAPH, "image/jpeg"))]},
    ),
    "urlencoded": ("tell", {"data": {"a": "1", "x": "a b&\u00e9", "empty": ""}}),
    "query": ("tell", {"content": b"x", "params": {"a": "1"}}),
    "header": ("tell", {"content": b"x", "headers": {"x-mine": "yes"}}),
    "empty": ("tell", {"content": b""}),
    "no list": ("no list", {"content": b"x"}),
    **{one: (one, {"content": b"x"}) for one in PLAIN.split()},
}


def unpack(path: Path, folder: Path) -> Path:
    """Unpacks an archive as `torch-model-archiver --archive-format no-archive` would make it."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return path


@pytest.fixture(scope="module")
def store(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store of one archive of each kind; `near-free`, a folder, is offpath's."""
    store = tmp_path_factory.mktemp("foreign")
    write_archive(store, "echo", {"handler.py": ECHO}, "handler.py:handle", CONFIG)
    files = {"offpath.py": OWN_CLASS, "helper.py": "WORD = 'mine'"}
    mine = write_archive(store, "mine", files, "offpath.py", CONFIG)
    unpack(mine, store / "mine").unlink()
    unpack(model_store / "near-free.mar", store / "near-free")
    write_archive(store, "sick", {"handler.py": SICK}, "handler.py:handle", CONFIG)
    net, weights = (store.with_name(f"net{suffix}") for suffix in (".py", ".pth"))
    net.write_text(NET)
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    torch.save(scope["Net"]().state_dict(), weights)
    labels = {str(n): f"label {n}" for n in range(7)}
    made = make_stock(store.with_name("made"), net, weights, labels=labels, config=CONFIG)
    made.rename(store / "stock.mar")
    return store


def start(store: Path, name: str, kind: str, **changes: object) -> Server:
    fields = {"inference_port": 0, "metrics_port": 0, "server": kind, **changes}
    return make_server(ServerSettings(store, (name,), **fields))


@pytest.fixture(scope="module")
def torchserve(store: Path) -> Iterator[Server]:
    """A TorchServe as shipped, with all archives but `near-free`, and its metrics on a page."""
    settings = ServerSettings(
        store,
        ("echo.mar", "mine", "stock.mar"),
        inference_port=0,
        metrics_port=0,
        overrides={"metrics_mode": "prometheus", "disable_token_authorization": "true"},
        stock=True,
    )
    with make_server(settings) as server:
        yield server


@pytest.fixture(scope="module")
def granian(store: Path) -> Iterator[Server]:
    """A Granian without a front door, which then has one archive."""
    with start(store, "echo.mar", "granian", management_port=0) as server:
        yield server


@pytest.fixture(scope="module")
def door(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    """A Granian with all archives behind a front door, by a configuration that KServe may write."""
    folder = tmp_path_factory.mktemp("door")
    numbers = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 50}
    files = {"echo": "echo.mar", "mine": "mine", "stock": "stock.mar"}
    files |= {"near-free": "near-free", "sick": "sick.mar"}
    models = {name: {"1.0": {**numbers, "marName": file}} for name, file in files.items()}
    models["echo"]["1.0"]["maxWorkers"] = 5
    models["sick"]["1.0"] |= {"batchSize": 1, "responseTimeout": 5}
    snapshot = json.dumps({"name": "startup.cfg", "modelCount": len(models), "models": models})
    config = folder / "config.properties"
    config.write_text(f"model_snapshot={snapshot}\nnumber_of_netty_threads=4\nNUM_WORKERS=1\n")
    with front(store, folder / "logs", "--server", "granian", "--config", str(config)) as running:
        yield running


def ask(url: str, request: str, model: str = "echo") -> httpx.Response:
    do, arguments = REQUESTS.get(request, (request, {}))
    headers = {**arguments.get("headers", {}), "x-do": do}
    target = f"{url}/predictions/{model}"
    return httpx.request(**{"method": "POST", **arguments, "url": target, "headers": headers})


def show(reply: httpx.Response) -> tuple[int, str | None, bytes | object]:
    """Returns what must be equal: status, type and body."""
    kind = reply.headers.get("content-type")
    return reply.status_code, kind, reply.json() if reply.content[:1] == b"{" else reply.content


@pytest.mark.parametrize("request_", REQUESTS)
def test_replies_are_those_of_torchserve(
    torchserve: Server, granian: Server, request_: str
) -> None:
    theirs, ours = ask(torchserve.inference_url, request_), ask(granian.inference_url, request_)
    assert show(ours) == show(theirs)
    assert ours.headers.get("x-own") == theirs.headers.get("x-own")


@pytest.mark.parametrize(
    "path",
    [
        "v1/models/echo:predict",
        "v1/models/echo:explain",
        "v2/models/echo/infer",
        "v2/models/echo/explain",
    ],
)
def test_paths_of_kserve_give_the_handler_the_body_as_it_is(
    torchserve: Server, granian: Server, path: str
) -> None:
    theirs, ours = (
        httpx.post(f"{one.inference_url}/{path}", json={"instances": [1]}, headers={"x-do": "tell"})
        for one in (torchserve, granian)
    )
    assert show(ours) == show(theirs)
    assert ours.json()["rows"] == {"body": {"instances": [1]}}


def ask_together(paths: Sequence[str], **arguments: Any) -> list[tuple[str, Any]]:
    """Sends requests at once, so that they share batches; returns the replies, by path."""
    with ThreadPoolExecutor(len(paths)) as pool:
        replies = pool.map(lambda path: httpx.post(path, timeout=MOST_S, **arguments), paths)
    return [(path.split("/")[-2], reply.json()) for path, reply in zip(paths, replies)]


@guarantee(
    "A prediction that turns into something else",
    "serving/granian/foreign_handler.py",
    "explains = {",
    "explains = False and {",
)
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({}, id="two-kinds-at-once"),
        pytest.param({"explain": "True", "describe": "True"}, id="forged-headers"),
    ],
)
def test_a_handler_gets_batches_of_the_kind_that_their_path_names(
    granian: Server, forged: dict[str, str]
) -> None:
    paths = [f"{granian.inference_url}/{kind}/echo" for kind in ("predictions", "explanations")]
    kinds = ask_together(12 * paths, content=b"x", headers={"x-do": "kind", **forged})
    expected = {"predictions": ["False", None], "explanations": ["True", None]}
    assert all(kind == expected[path] for path, kind in kinds), kinds


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize(
    ("text_bytes", "batches"),
    [pytest.param(9 << 20, {1}, id="large"), pytest.param(9, {1, 2, 3, 4}, id="small")],
)
def test_large_json_is_decoded_for_one_request_at_a_time(
    granian: Server, text_bytes: int, batches: set[int]
) -> None:
    path = f"{granian.inference_url}/predictions/echo"
    sizes = ask_together(8 * [path], json=text_bytes * "a", headers={"x-do": "size"})
    assert {size for _, size in sizes} <= batches


@pytest.mark.parametrize("kind", ["granian", pytest.param("torchserve", marks=pytest.mark.slow)])
@pytest.mark.parametrize("envelope", ["kserve", "kservev2"])
def test_torchserves_envelopes_of_kserve(
    torchserve: Server, store: Path, monkeypatch: pytest.MonkeyPatch, envelope: str, kind: str
) -> None:
    monkeypatch.setenv("TS_SERVICE_ENVELOPE", envelope)
    answer = pytest.approx(ask(torchserve.inference_url, "body", "stock").json(), abs=1e-6)
    text = base64.b64encode(PHOTOGRAPH).decode()
    path, body = "v1/models/stock:predict", {"instances": [{"data": text}, {"data": text}]}
    if envelope == "kservev2":
        tensor = {"name": "7", "shape": [-1], "datatype": "BYTES", "data": [text]}
        path, body = "v2/models/stock/infer", {"id": "mine", "inputs": [tensor, tensor]}
    java = {"disable_token_authorization": "true", "service_envelope": envelope}
    changes = {"stock": True, "overrides": java} if kind == "torchserve" else {}
    with start(store, "stock.mar", kind, **changes) as server:
        reply, refused = (
            httpx.post(f"{server.inference_url}/{path}", json=one) for one in (body, {"wrong": 1})
        )
    if envelope == "kserve":
        assert reply.json() == {"predictions": [answer, answer]}
    else:
        outputs = reply.json()["outputs"]
        assert [one["data"] for one in outputs] == [[answer], [answer]]
        assert {key: outputs[0][key] for key in ("name", "datatype", "shape")} == {
            **{"name": "7", "datatype": "BYTES", "shape": [1]}
        }
        assert (reply.json()["id"], reply.json()["model_name"]) == ("mine", "stock")
    assert (refused.status_code, refused.json()["type"]) == (503, "InternalServerException")
    assert refused.json()["message"] == "Prediction failed"


@pytest.mark.parametrize(
    ("model", "requests"),
    [
        pytest.param("mine", ["put"], id="modules-with-our-names"),
        pytest.param(
            "stock", ["body", "put", "form-file", "text", "json", "fail"], id="stock-handler"
        ),
    ],
)
def test_archives_of_other_kinds_answer_as_on_torchserve(
    torchserve: Server, door: FrontProcess, model: str, requests: list[str]
) -> None:
    for request in requests:
        ours, theirs = (ask(url, request, model) for url in (door.url, torchserve.inference_url))
        assert show(ours) == show(theirs), request
        assert theirs.status_code == 200 or request in ("text", "json", "fail")


def read_metrics(server: Server) -> dict[str, float]:
    lines = httpx.get(f"{server.metrics_url}/metrics").text.splitlines()
    names = ("Seen", "Took", "Share")
    return {
        re.sub('[Hh]ostname="[^"]*",?', "", line.rpartition(" ")[0]).replace(",}", "}"): float(
            line.rpartition(" ")[2]
        )
        for line in lines
        if line.startswith(names)
    }


def test_metrics_of_the_handler_are_published(torchserve: Server, granian: Server) -> None:
    # No other test asks for them, so the counter is exact.
    theirs, ours = (ask(one.inference_url, "metrics") for one in (torchserve, granian))
    assert show(ours) == show(theirs) and ours.text == "counted"
    labels = 'ModelName="echo",Level="Model"'
    wanted = {f"Seen{{{labels}}}": 2.0, f"Took{{{labels}}}": 7.5, f"Share{{{labels}}}": 50.0}
    eventually(lambda: read_metrics(granian) == wanted)


def set_reply(url: str, **told: Any) -> httpx.Response:
    # httpx would write no lone surrogates.
    body = json.dumps(told)
    return httpx.post(f"{url}/predictions/echo", content=body, headers=SET, timeout=MOST_S)


@pytest.mark.parametrize(
    ("name", "metrics", "lines"),
    [
        pytest.param(
            "bad", [["bad name", 1, {}], ['bad"', 1, {}], ["bad\u00e9", 1, {}]], [], id="name"
        ),
        pytest.param("key", [["key", 1, {"a b": "1"}], ["key", 1, {"": "1"}]], [], id="label-name"),
        pytest.param(
            "sum", [["sum", 0, {}], ["sum", "nan", {}], ["sum", "x", {}]], ["0.0"], id="value"
        ),
        pytest.param(
            "text",
            [["text", 1, {"A": 'caf\u00e9\n"\ud800\\'}]],
            ['A="caf\u00e9\ufffd\\"\ufffd\\\\"'],
            id="label",
        ),
    ],
)
def test_no_metric_of_a_handler_breaks_the_page(
    granian: Server, name: str, metrics: list[Any], lines: list[str]
) -> None:
    end = f"end_of_{name}"
    assert set_reply(granian.inference_url, metrics=[*metrics, [end, 1, {}]]).text == "set"
    page = f"{granian.metrics_url}/metrics"
    text = eventually(lambda: end in (text := httpx.get(page).text) and text)
    seen = [line for line in text.split("\n") if line.startswith(name)]
    assert len(seen) == len(lines) and all(map(operator.contains, seen, lines)), seen
    assert all(SAMPLE.fullmatch(line) for line in text.splitlines())


def test_long_labels_silence_no_worker(granian: Server) -> None:
    assert ask(granian.inference_url, "many metrics").text == "counted"
    page = f"{granian.metrics_url}/metrics"
    many = eventually(lambda: re.findall(r'Many\{.*Text="(\d+) x{100}', httpx.get(page).text))
    eventually(lambda: len(re.findall(r"Many\{", httpx.get(page).text)) == 400, timeout_s=20)
    (worker,) = manage(granian, "/models/echo").json()[0]["workers"]
    assert many and worker["status"] == "READY"


@guarantee(
    "A reply of another's handler that ends its worker",
    "serving/granian/foreign_handler.py",
    "range(200, 600)",
    "range(0, 1 << 31)",
)
@pytest.mark.parametrize("code", [-1, 0, 99, 101, 199, 600, 1000])
def test_a_status_that_is_none_of_a_reply_is_a_500(granian: Server, code: int) -> None:
    (pid,) = granian.worker_pids()
    reply = set_reply(granian.inference_url, status={"code": code})
    assert reply.status_code == 500 and f"the status {code}; expected 200 to 599" in reply.text
    assert granian.worker_pids() == [pid] and set_reply(granian.inference_url).text == "set"


@pytest.mark.parametrize(
    ("told", "status"),
    [
        pytest.param({"status": {"phrase": 50 * "caf\u00e9"}}, 503, id="phrase"),
        pytest.param({"status": {"code": "200"}}, 503, id="status-text"),
        pytest.param({"headers": {"a": 1}}, 503, id="number"),
        pytest.param({"headers": {"a": "1\r\nb: 2", "": "c", "c d": "e"}}, 200, id="line-break"),
        pytest.param({"headers": {"Content-Length": "9", "Connection": "close"}}, 200, id="length"),
        pytest.param({"headers": {"transfer-encoding": "chunked"}}, 200, id="chunked"),
    ],
)
def test_a_reply_that_cannot_be_sent_costs_its_own_batch(
    granian: Server, told: dict[str, Any], status: int
) -> None:
    (pid,) = granian.worker_pids()
    reply = set_reply(granian.inference_url, **told)
    assert reply.status_code == status, reply.text
    if status == 200:
        assert reply.text == "set" and not {"a", "b", "transfer-encoding"} & {*reply.headers}
    else:
        assert reply.json()["message"] == "Prediction failed"
    assert granian.worker_pids() == [pid] and set_reply(granian.inference_url).text == "set"


def test_a_handlers_words_to_nginx_are_not_obeyed(door: FrontProcess) -> None:
    told = {"x-accel-redirect": "/_offpath/500", "x-accel-limit-rate": "1"}
    reply = set_reply(door.url, headers=told)
    assert (reply.status_code, reply.text) == (200, "set")
    assert not [name for name in reply.headers if name.startswith("x-accel")]


def manage(server: Server, path: str, method: str = "GET") -> httpx.Response:
    with open_http(server.management_url) as http:
        return http.request(method, path)


def test_management_tells_what_torchserve_tells(torchserve: Server, granian: Server) -> None:
    for path in ("/models/echo", "/models/echo/1.0", "/models/echo/all"):
        (theirs,), (ours,) = (manage(one, path).json() for one in (torchserve, granian))
        assert ours.pop("customizedMetadata") == {"device": "cpu"}
        assert [w["status"] for w in ours["workers"]] == ["READY"]
        theirs |= {key: ours[key] for key in ("modelUrl", "workers")}
        assert ours == {key: theirs[key] for key in ours}
    listed = [one["modelName"] for one in manage(granian, "/models?limit=5").json()["models"]]
    assert listed == ["echo"]
    assert manage(granian, "/ping").json() == {"status": "Healthy"}
    theirs, ours = (manage(one, "/api-description").json() for one in (torchserve, granian))
    for path in (path for path in ours["paths"] if "models" in path):
        names = {one["paths"][path]["get"]["operationId"] for one in (theirs, ours)}
        assert len(names) == 1, path
    for path in ("/models/none", "/models/echo/2.0"):
        assert [manage(one, path).status_code for one in (torchserve, granian)] == [404, 404]


def test_management_changes_nothing(granian: Server) -> None:
    for method, path in (
        ("POST", "/models?url=evil.mar"),
        ("PUT", "/models/echo?min_worker=9"),
        ("DELETE", "/models/echo/1.0"),
    ):
        reply = manage(granian, path, method)
        assert reply.status_code == 405 and "use `offpath reload`" in reply.json()["message"]
    assert len(manage(granian, "/models/echo").json()[0]["workers"]) == 1


def test_a_worker_has_not_imported_what_few_handlers_use(granian: Server) -> None:
    assert ask(granian.inference_url, "modules").json() == []


def test_a_reply_in_parts_is_refused(granian: Server) -> None:
    reply = ask(granian.inference_url, "stream")
    assert reply.status_code == 501 and "in parts" in reply.json()["message"]


def test_the_front_door_passes_each_body_whole(granian: Server, door: FrontProcess) -> None:
    """Beside an archive of offpath's, for which the door stores bodies as files."""
    told = [name for name, (do, _) in REQUESTS.items() if do == "tell"]
    for request in [*told, "bytes", "fail", "headers"]:
        behind = ask(door.url, request)
        assert show(behind) == show(ask(granian.inference_url, request)), request
    reply = httpx.post(f"{door.url}/predictions/near-free", content=PHOTOGRAPH)
    assert reply.status_code == 200 and "echo.mar: served as it is" in door.errors()
    assert "Granian ignores number_of_netty_threads, NUM_WORKERS\n" in door.errors()


def test_a_sick_handler_costs_its_own_requests_alone(door: FrontProcess) -> None:
    failed: dict[str, list[str]] = {do: [] for do in FAULTS}

    def send(do: str) -> httpx.Response:
        url, headers = f"{door.url}/predictions/sick", {"x-do": do}
        return httpx.post(url, headers=headers, content=b"x")

    with door.load("/predictions/near-free", [PHOTOGRAPH], clients=3, pause_s=0.02) as well:
        for do, (requests, _) in FAULTS.items():
            for _ in range(requests):
                reply = send(do)
                if reply.status_code != 200:
                    failed[do].append(f"{reply.status_code} {reply.text}")
                eventually(lambda: send("nothing").status_code == 200)
    assert {do: len(replies) for do, replies in failed.items()} == {
        do: count for do, (_, count) in FAULTS.items()
    }, (failed, door.errors())
    assert well.statuses[200] and not well.failed, well


@pytest.mark.parametrize(
    ("config", "handler", "why"),
    [
        ({"parallelType": "pp"}, "handler.py", "asks for parallelType"),
        ({"sequenceMaxIdleMSec": 9}, "handler.py", "asks for sequenceMaxIdleMSec: requests of a"),
        (None, "", "names no handler"),
        (None, "handler.so", "has a handler in C"),
    ],
)
def test_what_only_java_can_do_is_refused(
    tmp_path: Path, config: object, handler: str, why: str
) -> None:
    runtime = "LSP" if handler.endswith(".so") else "python"
    write_archive(tmp_path, "m", {"handler.py": ECHO}, handler, config, runtime)
    with pytest.raises(WrongOption, match=why):
        start(tmp_path, "m.mar", "granian").start()


def test_requirements_that_are_not_met_are_refused_if_they_would_be_installed(
    tmp_path: Path,
) -> None:
    files = {"handler.py": ECHO, "requirements.txt": "torch\nno-such-package>=2\n"}
    named = {"requirementsFile": "requirements.txt"}
    write_archive(tmp_path, "m", files, "handler.py:handle", CONFIG, **named)
    installs = {"install_py_dep_per_model": "true"}
    with pytest.raises(WrongOption, match=r"m.mar has .* pip install 'no-such-package>=2'"):
        start(tmp_path, "m.mar", "granian", overrides=installs).start()
