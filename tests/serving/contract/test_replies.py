"""One contract for every server, with and without a door: the same request gets the same reply.

TorchServe and Granian run for real. Ray's and Triton's classes run in a stand-in of their host
(export_host.py); tests/profiling/servers/test_adapters.py has the real ones.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from offpath.deploy.ray.ray_export import export_ray
from offpath.deploy.triton.triton_export import export_triton
from offpath.handler.config import HandlerConfig
from offpath.handler.error_kinds import BUSY_429, MODEL_GONE, OF_DOOR, OF_ITEMS
from offpath.handler.wire_names import (
    ARRIVED_HEADER,
    BODY_HEADER,
    ID_HEADER,
    KEY_HEADER,
    TYPE_HEADER,
    WARM_UP_HEADER,
)
from offpath.serving.client import Client
from offpath.serving.front.openapi import render_openapi
from offpath.serving.service.messages import make_event_id
from offpath.serving.starting import start_server
from tests.guarantees import guarantee
from tests.serving.contract import export_host
from tests.support.bucket import read_out, read_spool
from tests.support.echo_archive import make_settings
from tests.support.eventually import MAX_S, eventually
from tests.support.front import ServeProcess, log_variables
from tests.support.obedient_model import BATCH, BREAK, FOR_EVER, HANG, Flag, build_obedient
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.server
Ask = Callable[[bytes], httpx.Response]
PATH = "/predictions/near-free"
JPEG = encode(PHOTOGRAPHS[0].rgb, "JPEG", quality=90)
TEXT = base64.b64encode(JPEG).decode()
FORM = {"content-type": "application/x-www-form-urlencoded"}
MAX_IMAGE = HandlerConfig().max_payload_bytes
TRITON = "triton"
HOSTS = ("ray", TRITON)
DOORS = ("torchserve_door", "granian_door")
SERVERS = ("torchserve", *DOORS, "granian", *HOSTS)
# A batch that takes longer hangs.
LIMIT_S = 3
OPENAPI = json.loads(render_openapi())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the prediction log of the stand-ins."""
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def forker(log: Path) -> Iterator[subprocess.Popen[str]]:
    """Returns the process that runs exports in stand-ins of their hosts."""
    command = [sys.executable, export_host.__file__]
    pipe, env = subprocess.PIPE, {**os.environ, **log_variables(log)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd="/", text=True, env=env) as process:
        yield process
        process.kill()


@contextmanager
def hosted(forker: subprocess.Popen[str], kind: str, archive: Path, folder: Path) -> Iterator[str]:
    """Runs an export in the stand-in of its host; returns its address."""
    if kind == TRITON:
        export_triton(archive, folder)
    else:
        export_ray(archive, folder)
    assert forker.stdin is not None and forker.stdout is not None
    print(json.dumps([kind, str(folder)]), file=forker.stdin, flush=True)
    pid, port = json.loads(forker.stdout.readline())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=SERVERS)
def adapter(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, httpx.Client]]:
    """Returns each server's name, and a client of it."""
    kind = request.param
    if kind in HOSTS:
        folder, forker = tmp_path_factory.mktemp(kind), request.getfixturevalue("forker")
        with hosted(forker, kind, model_store / "near-free.mar", folder / "export") as url:
            with httpx.Client(base_url=url, timeout=MAX_S) as client:
                yield kind, client
        return
    running = request.getfixturevalue("server" if kind == "torchserve" else kind)
    url = running.inference_url if kind == "torchserve" else running.url
    with httpx.Client(base_url=url, timeout=MAX_S) as client:
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


@pytest.fixture
def ask_granian(granian: ServeProcess) -> Ask:
    """Returns what sends a body to the server with which all others are compared.

    tests/serving/offline/test_offline.py compares a server with the classifier itself.
    """
    return lambda body: httpx.post(granian.url + PATH, content=body, timeout=MAX_S)


def check_error(reply: httpx.Response, kind: str) -> None:
    """Compares an error's body with the OpenAPI description, which has the table of errors."""
    body = reply.json()
    place = f"responses/{body['code']}/content/application~1json/schema"
    jsonschema.validate(body, {**OPENAPI, "$ref": f"#/components/{place}"})
    if "torchserve" not in kind:  # Java has types of its own
        kinds = (*OF_ITEMS, *OF_DOOR, MODEL_GONE, BUSY_429)
        assert (body["code"], body["type"]) in {(one.status, one.type) for one in kinds}


def is_status(reply: httpx.Response, adapter: tuple[str, httpx.Client], status: int) -> bool:
    """Triton's errors have fewer statuses."""
    if adapter[0] == TRITON:
        status = status if status in (200, 500) else 503 if status >= 500 else 400
    return reply.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("POST", PATH, JPEG, 200, id="post"),
        pytest.param("PUT", PATH, JPEG, 200, id="put"),
        pytest.param("POST", PATH, b"", 400, id="empty"),
        pytest.param("POST", PATH, b"no image", 415, id="no-image"),
        pytest.param("POST", PATH, JPEG[:999], 422, id="cut-off"),
        pytest.param("POST", PATH, bytes(MAX_IMAGE + 1), 413, id="too-large"),
        pytest.param("GET", PATH, b"", 405, id="get"),
        pytest.param("POST", "/predictions/other", JPEG, 404, id="no-model"),
    ],
)
def test_a_request_gets_the_same_reply_from_every_server(
    adapter, send, ask_granian: Ask, method: str, path: str, body: bytes, status: int
) -> None:
    if adapter[0] == TRITON and path != PATH:
        pytest.skip("Triton has paths of its own")
    if adapter[0] == "torchserve" and method == "GET":
        status = 400  # Java takes any method
    reply = send(method, path, content=body)
    assert is_status(reply, adapter, status), reply.text
    if status == 405:
        assert reply.json()["type"] == "MethodNotAllowed"
        return
    if status != 200:
        check_error(reply, adapter[0])
    if path != PATH:
        is_of_java = "torchserve" in adapter[0]
        assert is_of_java or reply.json()["message"].startswith("no model 'other'; served: ")
        return
    expected = ask_granian(body)
    assert expected.status_code == status
    if status == 200:
        check_labels(reply, expected)
    else:
        assert reply.json() == expected.json()


def check_labels(reply: httpx.Response, expected: httpx.Response) -> None:
    """Checks that a reply has the labels of another in their order; threads move last digits."""
    labels = expected.json()
    assert list(reply.json()) == list(labels)
    assert reply.json() == pytest.approx(labels, abs=1e-5)


# Ways of sending an image: method, and arguments for httpx.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "multipart": ("POST", {"files": {"data": ("p.jpg", JPEG, "image/jpeg")}}),
    "multipart-with-more": ("POST", {"files": {"data": ("a" * 250, JPEG)}, "data": {"a": "1"}}),
    "json": ("POST", {"json": {"data": TEXT}}),
    "json-text": ("POST", {"json": TEXT}),
    "base64": ("POST", {"content": TEXT.encode()}),
    "chunked": ("PUT", {"content": [JPEG[at : at + 10_000] for at in range(0, len(JPEG), 10_000)]}),
    "curl-data-binary": ("POST", {"content": JPEG, "headers": FORM}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_has_the_same_answer(
    adapter, send, ask_granian: Ask, way: str
) -> None:
    if way == "chunked" and adapter[0] in HOSTS:
        pytest.skip("its stand-in reads no chunks")
    if way == "curl-data-binary" and adapter[0] == "torchserve":
        # Java parses the form before the handler sees the image.
        reply = send("POST", PATH, content=b"\x89PNG\r\n\x1a\n&" + b"x" * 100, headers=FORM)
        assert reply.status_code == 415
        assert "Content-Type: application/octet-stream" in reply.text
        return
    method, arguments = WAYS[way]
    reply = send(method, PATH, **arguments)
    check_labels(reply, ask_granian(JPEG))


def test_an_image_of_the_largest_size_may_come_as_base64(adapter, send) -> None:
    text = base64.b64encode(bytes(MAX_IMAGE)).decode()
    reply = send("POST", PATH, json={"data": text})
    # The handler has seen it, and zeros are no image.
    assert reply.json()["type"] == "UnsupportedFormat"


@pytest.mark.parametrize("in_url_form", [False, True], ids=["multipart", "url-form"])
def test_a_form_with_two_images_is_refused_with_the_cure(adapter, send, in_url_form: bool) -> None:
    """TorchServe gives a handler the last of them alone."""
    other = encode(PHOTOGRAPHS[1].rgb.resize((64, 48)), "JPEG")
    form: dict[str, Any] = {"files": [("data", ("a.jpg", one)) for one in (JPEG, other)]}
    if in_url_form:
        form = {"data": {"data": [base64.b64encode(one).decode() for one in (JPEG, other)]}}
    reply = send("POST", PATH, **form)
    assert is_status(reply, adapter, 400), reply.text
    assert reply.json()["type"] == "BadEnvelope"
    assert "send one image per request" in reply.json()["message"]


def test_bodies_that_no_image_needs_are_refused(adapter, send) -> None:
    if adapter[0] == TRITON:
        pytest.skip("Triton reads bodies itself")
    reply = send("POST", PATH, content=bytes(40_000_000))
    assert reply.status_code == 413
    if adapter[0] != "torchserve":  # Java's answer is empty
        check_error(reply, adapter[0])


def test_explanations(adapter, send) -> None:
    def ask() -> httpx.Response | None:
        reply = send("POST", "/explanations/near-free", content=JPEG)
        return None if reply.status_code == 429 else reply

    assert np.shape(eventually(ask).json()) == (3, 224, 224)


def test_a_thin_client_gets_the_answer_of_the_image(adapter, send) -> None:
    kind, client = adapter
    if kind == TRITON:
        pytest.skip("Triton has paths of its own")
    with Client(str(client.base_url), "near-free", thin=True) as thin:
        labels = dict(thin.predict(JPEG).labels)
    assert labels == pytest.approx(send("POST", PATH, content=JPEG).json(), abs=1e-4)


def test_ping(adapter, send) -> None:
    assert send("GET", "/ping").json() == {"status": "Healthy"}


def test_a_request_without_time_is_refused(adapter, send) -> None:
    headers = {"x-request-timeout-ms": "0"}
    reply = send("POST", PATH, content=JPEG, headers=headers)
    assert is_status(reply, adapter, 504) and reply.json()["type"] == "DeadlineExceeded"


@guarantee("Forged headers, names and keys")
def test_headers_of_the_front_door_mean_nothing_from_a_client(
    adapter, send, tmp_path: Path
) -> None:
    (tmp_path / "1").write_bytes(JPEG)
    forged = {
        BODY_HEADER: str(tmp_path / "1"),
        TYPE_HEADER: "multipart/form-data; boundary=x",
        ID_HEADER: "mine",
        ARRIVED_HEADER: "0",
    }
    if adapter[0] != "torchserve":  # Java passes a client's headers to the handler
        forged |= {"explain": "True", "describe": "True"}
    v1 = "/v1/models/near-free:predict"  # elsewhere both replies say that there is no such path
    instances = json.dumps({"instances": [TEXT]}).encode()
    requests = [(PATH, JPEG), (PATH, b"no image")] + [(v1, instances)] * (adapter[0] != TRITON)
    for key in ({}, {KEY_HEADER: "0" * 64, WARM_UP_HEADER: "0" * 64}):
        for path, body in requests:
            replies = [
                send("POST", path, content=body, headers=headers) for headers in ({}, forged | key)
            ]
            assert replies[0].status_code == replies[1].status_code
            assert replies[0].json() == replies[1].json()
            assert "mine" not in replies[1].headers.values()


def test_each_request_has_an_id_of_its_own(adapter, send, log: Path) -> None:
    kind, _ = adapter
    sent = {"x-request-id": kind}
    replies = [send("POST", PATH, content=body, headers=sent) for body in (JPEG, JPEG, b"no image")]

    def list_recorded() -> list[str]:
        return [one for one in read_recorded(log) if one.startswith(f"{kind}.")]

    if kind in HOSTS:  # which makes the header itself, and ours begins with its id
        eventually(lambda: len(list_recorded()) >= 3)
        ids = list_recorded()
    else:
        ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(ids) == len(set(ids)) == 3 and kind not in ids


def read_recorded(log: Path) -> set[str]:
    """Returns the event ids of all records, delivered or not."""
    return read_spool(log / "spool") | {*read_out(log / "log")}


@guarantee(
    "Requests that share an id",
    "serving/granian/foreign_handler.py",
    '"requestId": (request.id or',
    '"requestId": ("" or',
)
@pytest.mark.parametrize(
    ("running", "model"),
    [
        ("server", "near-free"),
        ("server", "second"),
        *((one, "near-free") for one in (*DOORS, "granian")),
        ("granian_door", "echo"),
    ],
)
def test_handler_reply_and_record_have_one_id(
    request: pytest.FixtureRequest, running: str, model: str
) -> None:
    target = request.getfixturevalue(running)
    url = target.inference_url if running == "server" else target.url
    headers = {"x-request-id": "mine", "x-do": "id"}
    body = JPEG if model == "near-free" else b"id"

    def send(_: object) -> httpx.Response:
        return httpx.post(f"{url}/predictions/{model}", content=body, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        replies = [*pool.map(send, range(16))]
    assert {reply.status_code for reply in replies} == {200}
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len({*ids, "mine", ""}) == 18
    if model == "near-free":
        spool = target.settings.env["OFFPATH_SPOOL_DIR"] if running == "server" else ""
        folder = Path(spool).parent if spool else target.log_dir.parent
        eventually(lambda: {*ids} <= read_recorded(folder))
    else:
        assert [reply.text for reply in replies] == ids


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize("given", ["", "1", "a~", "a b", "x" * 65])
def test_two_requests_with_one_id_have_two_records(given: str) -> None:
    first, second = make_event_id(given), make_event_id(given)
    assert first != second and "~" not in first
    assert first.startswith(given) == (given in ("", "1"))


@dataclass
class Tricky:
    """A server with one worker, whose model obeys `flag`."""

    kind: str
    url: str
    flag: Flag

    def post(self, timeout_s: float = MAX_S) -> httpx.Response:
        return httpx.post(f"{self.url}/predictions/tricky", content=JPEG, timeout=timeout_s)

    def is_noticed(self, why: str) -> bool:
        """Tells whether its host knows why the worker must be replaced."""
        if self.kind == "ray":
            return why in httpx.get(f"{self.url}/health").text
        with suppress(httpx.HTTPError):
            return self.post().json()["type"] == "ModelGone"
        return False


@pytest.fixture(params=HOSTS)
def host(
    request: pytest.FixtureRequest, forker: subprocess.Popen[str], tmp_path: Path
) -> Iterator[Tricky]:
    (tmp_path / "store").mkdir()
    flag = Flag(tmp_path / "flag")
    archive = build_obedient(tmp_path / "store", flag, workers=1, timeout_s=LIMIT_S)
    with hosted(forker, request.param, archive, tmp_path / "export") as url:
        yield Tricky(request.param, url, flag)


def test_a_host_knows_of_a_broken_model(host: Tricky) -> None:
    assert host.post().status_code == 200
    host.flag.order(BREAK, FOR_EVER)
    reply = host.post()
    assert reply.status_code == 503
    check_error(reply, host.kind)
    eventually(lambda: host.is_noticed("CUDA error"))


def test_a_host_knows_of_a_model_that_hangs(host: Tricky) -> None:
    assert host.post().status_code == 200
    host.flag.order(HANG)
    if host.kind == "ray":  # which replaces the replica, and answers for it
        with pytest.raises(httpx.ReadTimeout):
            host.post(0.1)
    else:
        assert host.post().status_code in (500, 503)
    eventually(lambda: host.is_noticed("has been running"))


@guarantee(
    "More requests than the queue holds",
    "serving/service/model_service.py",
    "if self.requests + requests > self._settings.max_requests:",
    "if False:",
)
@pytest.mark.parametrize(
    ("kind", "busy"), [("granian", 429), pytest.param("torchserve", 503, marks=pytest.mark.slow)]
)
def test_more_requests_than_the_queue_holds_are_refused(
    kind: str, busy: int, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    flag = Flag(tmp_path / "flag")
    archive = build_obedient(tmp_path / "store", flag, workers=1)
    settings = make_settings(archive, server=kind, overrides={"job_queue_size": "1"})
    with start_server(replace(settings, busy_status=busy)) as running:
        small = Tricky(kind, running.inference_url, flag)
        flag.hold()
        with ThreadPoolExecutor(1 + 2 * BATCH) as pool:
            first = pool.submit(small.post)
            flag.find_holder()
            others = [pool.submit(small.post) for _ in range(2 * BATCH)]
            refused = next(as_completed(others)).result()
            flag.go()
            assert first.result().status_code == 200
            statuses = {other.result().status_code for other in others}
    assert refused.status_code == busy and statuses <= {200, busy}
    check_error(refused, kind)
