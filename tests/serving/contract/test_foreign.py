"""Archives that are not offpath's: a real TorchServe and Granian give equal replies."""

from __future__ import annotations

import base64
import json
import operator
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from offpath.errors import WrongOption
from offpath.serving.server.management import open_http
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.starting import start_server
from tests.guarantees import guarantee
from tests.serving.contract.foreign_archives import ECHO, FAULTS
from tests.serving.scrape import read_lines
from tests.support.echo_archive import write_archive
from tests.support.eventually import MAX_S, eventually
from tests.support.front import FrontProcess
from tests.support.images import jpeg

pytestmark = pytest.mark.server
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
    "text": ("tell", {"content": "caf\u00e9", "headers": {"Content-Type": "text/plain"}}),
    "form-file": ("tell", {"files": {"data": ("a.jpg", PHOTOGRAPH, "image/jpeg")}}),
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
    # Of KServe, whose bodies such a handler gets as they are.
    **{
        path: ("tell", {"path": path, "json": {"instances": [1]}})
        for path in (
            *("/v1/models/{}:predict", "/v1/models/{}:explain"),
            *("/v2/models/{}/infer", "/v2/models/{}/explain"),
        )
    },
    **{one: (one, {"content": b"x"}) for one in PLAIN.split()},
}


def start(store: Path, names: Sequence[str], kind: str, **changes: object) -> Server:
    fields = {"inference_port": 0, "metrics_port": 0, "server": kind, **changes}
    return start_server(ServerSettings(store, tuple(names), **fields))


@pytest.fixture(scope="module")
def torchserve(granian_store: Path) -> Iterator[Server]:
    """A TorchServe as shipped, with its metrics on a page."""
    names = ("echo.mar", "mine", "stock.mar")
    overrides = {"metrics_mode": "prometheus", "disable_token_authorization": "true"}
    with start(granian_store, names, "torchserve", stock=True, overrides=overrides) as server:
        yield server


@pytest.fixture(scope="module")
def direct(granian_store: Path) -> Iterator[Server]:
    """A Granian without a front door, which then has one archive."""
    with start(granian_store, ["echo.mar"], "granian", management_port=0) as server:
        yield server


def ask(url: str, request: str, model: str = "echo") -> httpx.Response:
    do, arguments = REQUESTS.get(request, (request, {}))
    arguments = {"method": "POST", "headers": {}, "path": "/predictions/{}", **arguments}
    target = url + arguments.pop("path").format(model)
    arguments["headers"] = {**arguments["headers"], "x-do": do}
    return httpx.request(url=target, **arguments)


def show(reply: httpx.Response) -> tuple[int, str | None, bytes | object]:
    """Returns what must be equal: status, type and body."""
    content = reply.json() if reply.content[:1] in (b"{", b"[") else reply.content
    return reply.status_code, reply.headers.get("content-type"), content


# Each request to `echo` without and behind the door, and some to the others.
CASES = [
    *((server, "echo", request) for server in ("direct", "granian_door") for request in REQUESTS),
    ("granian_door", "mine", "put"),
    *(
        ("granian_door", "stock", one)
        for one in ("body", "put", "form-file", "text", "json", "fail")
    ),
]


@pytest.mark.parametrize(("server", "model", "request_"), CASES)
def test_replies_are_those_of_torchserve(
    request: pytest.FixtureRequest, torchserve: Server, server: str, model: str, request_: str
) -> None:
    """Bodies go through a door whole, beside an archive whose bodies it stores as files."""
    running = request.getfixturevalue(server)
    url = running.url if isinstance(running, FrontProcess) else running.inference_url
    theirs, ours = (ask(one, request_, model) for one in (torchserve.inference_url, url))
    assert show(ours) == show(theirs)
    assert ours.headers.get("x-own") == theirs.headers.get("x-own")
    assert model == "echo" or theirs.status_code == 200 or request_ in ("text", "json", "fail")


def ask_together(paths: Sequence[str], **arguments: Any) -> list[tuple[str, Any]]:
    """Sends requests at once, so that they share batches; returns the replies, by path."""
    with ThreadPoolExecutor(len(paths)) as pool:
        replies = pool.map(lambda path: httpx.post(path, timeout=MAX_S, **arguments), paths)
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
    direct: Server, forged: dict[str, str]
) -> None:
    paths = [f"{direct.inference_url}/{kind}/echo" for kind in ("predictions", "explanations")]
    kinds = ask_together(12 * paths, content=b"x", headers={"x-do": "kind", **forged})
    expected = {"predictions": ["False", None], "explanations": ["True", None]}
    assert all(kind == expected[path] for path, kind in kinds), kinds


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize(
    ("text_bytes", "batches"),
    [pytest.param(9 << 20, {1}, id="large"), pytest.param(9, {1, 2, 3, 4}, id="small")],
)
def test_large_json_is_decoded_for_one_request_at_a_time(
    direct: Server, text_bytes: int, batches: set[int]
) -> None:
    path = f"{direct.inference_url}/predictions/echo"
    sizes = ask_together(8 * [path], json=text_bytes * "a", headers={"x-do": "size"})
    assert {size for _, size in sizes} <= batches


@pytest.mark.parametrize("envelope", ["kserve", "kservev2"])
def test_torchserves_envelopes_of_kserve(
    torchserve: Server,
    granian_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    envelope: str,
) -> None:
    monkeypatch.setenv("TS_SERVICE_ENVELOPE", envelope)
    answer = pytest.approx(ask(torchserve.inference_url, "body", "stock").json(), abs=1e-6)
    text = base64.b64encode(PHOTOGRAPH).decode()
    path, body = "v1/models/stock:predict", {"instances": [{"data": text}, {"data": text}]}
    if envelope == "kservev2":
        tensor = {"name": "7", "shape": [-1], "datatype": "BYTES", "data": [text]}
        path, body = "v2/models/stock/infer", {"id": "mine", "inputs": [tensor, tensor]}
    with start(granian_store, ["stock.mar"], "granian") as server:
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


def read_metrics(server: Server) -> dict[str, tuple[dict[str, str], float]]:
    """Returns labels, without the host's name, and value of each metric of the handler."""
    return {
        name: ({key: text for key, text in labels.items() if key.lower() != "hostname"}, value)
        for name, labels, value in read_lines(f"{server.metrics_url}/metrics")
        if name in ("Seen", "Took", "Share")
    }


def test_metrics_of_the_handler_are_published(torchserve: Server, direct: Server) -> None:
    # No other test asks for them, so the counter is exact.
    theirs, ours = (ask(one.inference_url, "metrics") for one in (torchserve, direct))
    assert show(ours) == show(theirs) and ours.text == "counted"
    labels = {"ModelName": "echo", "Level": "Model"}
    wanted = {"Seen": (labels, 2.0), "Took": (labels, 7.5), "Share": (labels, 50.0)}
    eventually(lambda: read_metrics(direct) == wanted)


def set_reply(url: str, **told: Any) -> httpx.Response:
    # httpx would write no lone surrogates.
    body = json.dumps(told)
    return httpx.post(f"{url}/predictions/echo", content=body, headers=SET, timeout=MAX_S)


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
    direct: Server, name: str, metrics: list[Any], lines: list[str]
) -> None:
    end = f"end_of_{name}"
    assert set_reply(direct.inference_url, metrics=[*metrics, [end, 1, {}]]).text == "set"
    page = f"{direct.metrics_url}/metrics"
    text = eventually(lambda: end in (text := httpx.get(page).text) and text)
    seen = [line for line in text.split("\n") if line.startswith(name)]
    assert len(seen) == len(lines) and all(map(operator.contains, seen, lines)), seen
    assert all(SAMPLE.fullmatch(line) for line in text.splitlines())


@guarantee(
    "A reply of another's handler that ends its worker",
    "serving/granian/foreign_handler.py",
    "range(200, 600)",
    "range(0, 1 << 31)",
)
@pytest.mark.parametrize(
    ("told", "status"),
    [
        *(
            pytest.param({"status": {"code": code}}, 500, id=str(code))
            for code in (-1, 0, 99, 101, 199, 600, 1000)
        ),
        pytest.param({"status": {"phrase": 50 * "caf\u00e9"}}, 503, id="phrase"),
        pytest.param({"status": {"code": "200"}}, 503, id="status-text"),
        pytest.param({"headers": {"a": 1}}, 503, id="number"),
        pytest.param({"headers": {"a": "1\r\nb: 2", "": "c", "c d": "e"}}, 200, id="line-break"),
        pytest.param({"headers": {"Content-Length": "9", "Connection": "close"}}, 200, id="length"),
        pytest.param({"headers": {"transfer-encoding": "chunked"}}, 200, id="chunked"),
    ],
)
def test_a_reply_that_cannot_be_sent_costs_its_own_batch(
    direct: Server, told: dict[str, Any], status: int
) -> None:
    (pid,) = direct.worker_pids()
    reply = set_reply(direct.inference_url, **told)
    assert reply.status_code == status, reply.text
    if status == 200:
        assert reply.text == "set" and not {"a", "b", "transfer-encoding"} & {*reply.headers}
    else:
        said = "Prediction failed" if status == 503 else "; expected 200 to 599"
        assert said in reply.json()["message"]
    assert direct.worker_pids() == [pid] and set_reply(direct.inference_url).text == "set"


def test_a_handlers_words_to_nginx_are_not_obeyed(granian_door: FrontProcess) -> None:
    told = {"x-accel-redirect": "/_offpath/500", "x-accel-limit-rate": "1"}
    reply = set_reply(granian_door.url, headers=told)
    assert (reply.status_code, reply.text) == (200, "set")
    assert not [name for name in reply.headers if name.startswith("x-accel")]


def manage(server: Server, path: str, method: str = "GET") -> httpx.Response:
    with open_http(server.management_url) as http:
        return http.request(method, path)


def test_management_tells_what_torchserve_tells(torchserve: Server, direct: Server) -> None:
    for path in ("/models/echo", "/models/echo/1.0", "/models/echo/all"):
        (theirs,), (ours,) = (manage(one, path).json() for one in (torchserve, direct))
        assert ours.pop("customizedMetadata") == {"device": "cpu"}
        assert [w["status"] for w in ours["workers"]] == ["READY"]
        theirs |= {key: ours[key] for key in ("modelUrl", "workers")}
        assert ours == {key: theirs[key] for key in ours}
    listed = [one["modelName"] for one in manage(direct, "/models?limit=5").json()["models"]]
    assert listed == ["echo"]
    for path in ("/models/none", "/models/echo/2.0"):
        assert [manage(one, path).status_code for one in (torchserve, direct)] == [404, 404]


def test_management_changes_nothing(direct: Server) -> None:
    for method, path in (
        ("POST", "/models?url=evil.mar"),
        ("PUT", "/models/echo?min_worker=9"),
        ("DELETE", "/models/echo/1.0"),
    ):
        reply = manage(direct, path, method)
        assert reply.status_code == 405 and "use `offpath reload`" in reply.json()["message"]
    assert len(manage(direct, "/models/echo").json()[0]["workers"]) == 1


def test_a_worker_has_not_imported_what_few_handlers_use(direct: Server) -> None:
    assert ask(direct.inference_url, "modules").json() == []


def test_a_reply_in_parts_is_refused(direct: Server) -> None:
    reply = ask(direct.inference_url, "stream")
    assert reply.status_code == 501 and "in parts" in reply.json()["message"]


def test_a_sick_handler_costs_its_own_requests_alone(granian_door: FrontProcess) -> None:
    failed: dict[str, list[str]] = {do: [] for do in FAULTS}

    def send(do: str) -> httpx.Response:
        url, headers = f"{granian_door.url}/predictions/sick", {"x-do": do}
        return httpx.post(url, headers=headers, content=b"x")

    with granian_door.load("/predictions/near-free", [PHOTOGRAPH], clients=3, pause_s=0.02) as well:
        for do, (requests, _) in FAULTS.items():
            for _ in range(requests):
                reply = send(do)
                if reply.status_code != 200:
                    failed[do].append(f"{reply.status_code} {reply.text}")
                eventually(lambda: send("nothing").status_code == 200)
    assert {do: len(replies) for do, replies in failed.items()} == {
        do: count for do, (_, count) in FAULTS.items()
    }, (failed, granian_door.errors())
    assert well.statuses[200] and not well.failed, well


@pytest.mark.parametrize(
    ("config", "handler", "why"),
    [
        ({"parallelType": "pp"}, "handler.py", "asks for parallelType"),
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
        start(tmp_path, ["m.mar"], "granian")
