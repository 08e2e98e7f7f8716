from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from offpath.errors import ExpectedError
from offpath.serving.process.processes import find_family
from offpath.serving.starting import start_server
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.serving.scrape import count_log_lines, sum_metric
from tests.support.echo_archive import MODEL_CONFIG, MakeMar, make_settings, write_mar
from tests.support.eventually import MAX_S, eventually

pytestmark = pytest.mark.server
REQUESTS = 100
BROKEN_FORMS = 500
# And an empty SETTINGS frame (RFC 9113, 3.4).
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


@pytest.fixture(scope="module")
def second(
    tmp_path_factory: pytest.TempPathFactory, echo_server: TorchServe
) -> Iterator[TorchServe]:
    """Starts a second server.

    When it is stopped nothing of it is left, and the first server still answers.
    """
    mar = write_mar(tmp_path_factory.mktemp("second") / "store", "echo")
    with start_server(make_settings(mar)) as server:
        yield server
    assert not server.log_dir.parent.exists()
    eventually(lambda: find_family(server.pid) == [])
    assert post(echo_server) == "3"


def post(server: TorchServe, body: bytes = b"abc") -> str:
    url = f"{server.inference_url}/predictions/echo"
    return httpx.post(url, content=body, trust_env=False).text


def test_two_servers_run_side_by_side(echo_server: TorchServe, second: TorchServe) -> None:
    assert (post(echo_server), post(second, b"four")) == ("3", "4")
    socket_file = Path(second.management_url.removeprefix("unix:"))
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
    assert not {*echo_server.worker_pids()} & {*second.worker_pids()}


@guarantee("Ports open to strangers")
@pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"]
)
def test_grpc_is_closed_unless_it_is_asked_for(
    echo_server: TorchServe, version: ssl.TLSVersion
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    for port in (echo_server.ports.grpc, echo_server.ports.grpc_management):
        with socket.create_connection(("127.0.0.1", port), MAX_S) as plain:
            plain.sendall(HTTP2_PREFACE)
            assert plain.recv(100) == b""
        with socket.create_connection(("127.0.0.1", port), MAX_S) as connection:
            with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
                context.wrap_socket(connection)


@guarantee("Logs that fill the disk or forge lines")
def test_clients_cause_a_line_a_second_and_forge_none(echo_server: TorchServe) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    url = f"{echo_server.inference_url}/predictions/echo"
    before, size = count_log_lines(echo_server), log_bytes(echo_server)
    begin_s = time.monotonic()
    with httpx.Client(headers=form, trust_env=False) as client:
        with contextlib.suppress(httpx.HTTPError):
            # Java quotes all of it, in the log and in its answer.
            client.post(url, content=b"data=" + b"%" * 10**6)
        for _ in range(BROKEN_FORMS):
            client.post(url, content=b"%zz\x1b[2J\r\nforged=" + b"%0d%0aforged" * 9)
    seconds = time.monotonic() - begin_s
    lines = count_log_lines(echo_server) - before
    assert lines <= seconds + 1
    assert log_bytes(echo_server) - size < 10_000 + 1000 * (seconds + 1)
    assert b"\x1b" not in echo_server.log_path.read_bytes()
    assert post(echo_server) == "3"


def log_bytes(server: TorchServe) -> int:
    return sum(path.stat().st_size for path in server.log_dir.iterdir())


def test_worker_that_refuses_its_config_fails_the_start_with_its_words(
    make_mar: MakeMar, tmp_path: Path
) -> None:
    mar = make_mar(config={**MODEL_CONFIG, "handler": {"topk": 5}})
    server = start_server(make_settings(mar, log_dir=tmp_path / "logs"))
    with pytest.raises(ExpectedError, match="unknown key 'topk'") as caught, server:
        pass
    first, second = str(caught.value).splitlines()
    why = "ValueError: unknown key 'topk' in handler; accepted: none"
    assert first == f"echo.mar (model echo 1.0) cannot be loaded: {why}"
    assert str(server.log_path) in second
    assert server.log_path.exists()
    assert find_family(server.pid) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        pytest.param({"vmargs": "-XX:+NoSuchOption"}, "NoSuchOption", id="java"),
        pytest.param({"number_of_netty_threads": "nonsense"}, "nonsense", id="torchserve"),
    ],
)
def test_server_that_ends_at_start_is_reported_and_leaves_its_logs_alone(
    make_mar: MakeMar, overrides: dict, words: str
) -> None:
    server = start_server(make_settings(make_mar(), overrides=overrides))
    with pytest.raises(ExpectedError, match=words), server:
        pass
    folder = server.log_dir.parent
    assert [path.name for path in folder.iterdir()] == ["logs"]
    shutil.rmtree(folder)


def test_metrics_count_the_workers_of_a_model_that_dies(second: TorchServe) -> None:
    def count(what: str) -> float:
        url = f"{second.metrics_url}/metrics"
        return sum_metric(url, f"offpath_worker{what}", model="echo", version="1.0")

    def is_dead() -> bool:
        for pid in second.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return count("s_ready") == 0

    wanted, ended = count("s_wanted"), count("_ends_total")
    eventually(lambda: count("s_ready") == wanted > 0)
    eventually(is_dead)
    assert count("s_wanted") == wanted
    eventually(lambda: count("s_ready") == wanted)
    assert count("_ends_total") >= ended + wanted
