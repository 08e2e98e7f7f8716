"""A door with TLS, HTTP/2, tokens, limits and clients' ids."""

from __future__ import annotations

import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from offpath.serving.client import Client
from tests.guarantees import guarantee
from tests.support.certificates import write_certificate
from tests.support.echo_archive import write_mar
from tests.support.eventually import eventually
from tests.support.front import FrontProcess

pytestmark = pytest.mark.server

OLD, NEW = "old-token-0123456789", "New-Token-0123456789"
SENT = "11111111-2222-3333-4444-555555555555"
BODY = bytes(300_000)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front-tls")
    write_certificate(folder)
    (folder / "tokens").write_text(OLD)
    return folder


@pytest.fixture(scope="module")
def door(files: Path) -> Iterator[FrontProcess]:
    options = ["--tls-cert", str(files / "door.pem"), "--tls-key"]
    options += [str(files / "door.key"), "--tokens", str(files / "tokens")]
    options += ["--client-ids", "--limit", "client-rate=1000", "--limit", "client-connections=16"]
    options += ["--grpc-port", "0"]
    # No handler of ours: bodies go through.
    store = write_mar(files / "store").parent
    with FrontProcess(store, files / "logs", *options) as running:
        yield running


@pytest.fixture
def http(door: FrontProcess, files: Path) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=door.url, verify=trusting(files / "door.pem"), trust_env=False
    ) as client:
        client.headers["Authorization"] = f"Bearer {OLD}"
        yield client


def post(http: httpx.Client, **headers: str) -> httpx.Response:
    return http.post("/predictions/echo", content=BODY, headers=headers)


def test_another_handler_gets_the_body_itself(http: httpx.Client) -> None:
    assert post(http).text == str(len(BODY))


def ask(door: FrontProcess, files: Path, lines: bytes) -> bytes:
    """Returns the head of the reply to a prediction with these lines in its own."""
    address = door.url.removeprefix("https://")
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        trusting(files / "door.pem").wrap_socket(plain, server_hostname=host) as client,
    ):
        head = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        client.sendall(head + lines + b"\r\n\r\nx")
        return client.recv(1000)


GOOD = f"Bearer {OLD}".encode()


@guarantee(
    "No token, or too many requests",
    "serving/conf/nginx.conf",
    "default {{ 0 if settings.tokens else 1 }};",
    "default 1;",
)
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(b"Accept: */*", id="none"),
        pytest.param(b"Authorization: Bearer", id="empty"),
        pytest.param(b"Authorization: Bearer " + OLD.encode() + b"x", id="longer"),
        pytest.param(b"Authorization: Bearer " + OLD.upper().encode(), id="upper-case"),
        pytest.param(b"Authorization: Basic " + OLD.encode(), id="basic"),
        pytest.param(b"Authorization: " + OLD.encode(), id="bare"),
        pytest.param(b"Authorization: Bearer  " + OLD.encode(), id="two-spaces"),
        pytest.param(b"Authorization: Bearer\t" + OLD.encode(), id="tab"),
        pytest.param(b'Authorization: Bearer "' + OLD.encode() + b'"', id="quoted"),
        pytest.param(b"Authorization: Bearer " + b64encode(OLD.encode()), id="base64"),
        pytest.param(b"Authorization: Bearer " + OLD.replace("-", "%2d").encode(), id="percent"),
        pytest.param(b"Authorization: Bearer x, " + GOOD, id="list"),
        pytest.param(b"Authorization: " + GOOD + b", x", id="list-with-the-token-first"),
        pytest.param(b"Authorization: Bearer x\r\nAuthorization: " + GOOD, id="two-lines"),
        pytest.param(b"Authorization: " + GOOD + b"\r\nAuthorization: x", id="token-line-first"),
        pytest.param(b"Authorization: Bearer\r\n " + OLD.encode(), id="folded-line"),
        pytest.param(b"Authorization: " + GOOD + b"\0", id="nul-after"),
        pytest.param(b"Authorization : " + GOOD, id="space-before-colon"),
        pytest.param(b"Proxy-Authorization: " + GOOD, id="proxy"),
        pytest.param(b"X-Authorization: " + GOOD, id="another-header"),
        pytest.param(b"Cookie: Authorization=" + GOOD, id="cookie"),
    ],
)
def test_what_is_no_token_is_refused(door: FrontProcess, files: Path, lines: bytes) -> None:
    reply = ask(door, files, lines)
    is_told = b" 401 " in reply and b"www-authenticate: bearer" in reply.lower()
    assert is_told or b" 400 " in reply


def test_health_checks_need_no_token(http: httpx.Client) -> None:
    for path in ("/ping", "/live"):
        assert http.get(path, headers={"Authorization": ""}).status_code == 200


def test_the_only_model_is_found_with_a_token(door: FrontProcess, http: httpx.Client) -> None:
    assert http.get("/models").json() == {"models": [{"modelName": "echo"}]}
    assert http.get("/openapi.json").json()["openapi"] == "3.1.0"
    for path in ("/models", "/openapi.json"):
        assert http.get(path, headers={"Authorization": ""}).status_code == 401
    token = {"Authorization": f"Bearer {OLD}"}
    with Client(door.url, headers=token, verify=False) as client:
        assert client.try_predict(BODY).status == 200


def test_what_only_torchserve_can_do_keeps_torchserve(door: FrontProcess) -> None:
    done = door.reload("--server", "granian")
    assert done.returncode == 1 and "--grpc-port needs --server torchserve" in done.stderr


@guarantee("Requests that share an id")
def test_a_foreign_handler_has_the_replys_id_whatever_its_client_asks_for(
    http: httpx.Client,
) -> None:
    reply = http.post("/predictions/echo", content=b"id", headers={"x-request-id": SENT})
    own = reply.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", own) and own != SENT and reply.text == own


def test_replaced_tokens_and_certificates_are_taken_over(
    door: FrontProcess, http: httpx.Client, files: Path
) -> None:
    def status(token: str) -> int:
        return post(http, Authorization=f"Bearer {token}").status_code

    (files / "tokens").write_text(OLD)
    eventually(lambda: (status(OLD), status(NEW)) == (200, 401))
    (files / "tokens").write_text(f"{OLD}\n{NEW}\n")
    eventually(lambda: status(NEW) == 200)
    assert status(OLD) == 200
    said = len(door.errors())
    (files / "tokens").write_text("short\n")
    eventually(lambda: "is not a token" in door.errors()[said:])
    assert status(OLD) == status(NEW) == 200
    # As if the disk were full.
    obstacle = door.run / "nginx.conf.new"
    obstacle.mkdir()
    (files / "tokens").write_text(f"{NEW}\n")
    eventually(lambda: "cannot be written" in door.errors()[said:])
    assert status(OLD) == 200
    obstacle.rmdir()
    (files / "tokens").touch()
    eventually(lambda: status(OLD) == 401)
    before = door.nginx_workers()
    write_certificate(files)
    # Until it has ended, a worker with the old certificate may still accept a connection.
    eventually(lambda: not set(before) & set(door.nginx_workers()))
    eventually(lambda: is_trusted(door, files / "door.pem"))


def is_trusted(door: FrontProcess, certificate: Path) -> bool:
    try:
        httpx.get(f"{door.url}/ping", verify=trusting(certificate), trust_env=False)
    except httpx.ConnectError:
        return False
    return True
