from __future__ import annotations

import shutil
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.handler.errors import ExpectedError
from offpath.serving.processes import find_session_members
from offpath.serving.torchserve import TorchServe
from tests.support.echo_archive import MODEL_CONFIG, MakeMar, make_settings

pytestmark = pytest.mark.server
REQUESTS = 100


def post(server: TorchServe, body: bytes = b"abc") -> str:
    url = f"{server.inference_url}/predictions/echo"
    return httpx.post(url, content=body, trust_env=False).text


def test_two_servers_serve_side_by_side_and_leave_nothing(make_mar: MakeMar) -> None:
    settings = make_settings(make_mar())
    with TorchServe(settings) as one, TorchServe(settings) as two:
        assert (post(one), post(two, b"four")) == ("3", "4")
        pids = [one.java_pid, two.java_pid, *one.worker_pids(), *two.worker_pids()]
        folders = [one.log_dir.parent, two.log_dir.parent]
        assert len(set(pids)) == 4
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)


def test_requests_write_no_log_line_unless_verbose(make_mar: MakeMar) -> None:
    mar = make_mar()
    with TorchServe(make_settings(mar)) as server:
        assert count_lines_written(server) == 0
    with TorchServe(make_settings(mar, verbose=True)) as server:
        assert count_lines_written(server) > REQUESTS


def count_lines_written(server: TorchServe) -> int:
    """Log lines, in all files, that 100 requests add."""

    def count() -> int:
        return sum(
            len(path.read_bytes().splitlines()) for path in server.log_dir.iterdir()
        )

    before = count()
    with httpx.Client(base_url=server.inference_url, trust_env=False) as client:
        for _ in range(REQUESTS):
            client.post("/predictions/echo", content=b"abc").raise_for_status()
    return count() - before


def test_worker_that_refuses_its_config_fails_the_start_with_its_words(
    make_mar: MakeMar, tmp_path: Path
) -> None:
    mar = make_mar(config={**MODEL_CONFIG, "handler": {"topk": 5}})
    server = TorchServe(make_settings(mar, log_dir=tmp_path / "logs"))
    with pytest.raises(ExpectedError, match="unknown key 'topk'") as caught, server:
        pass
    assert str(server.log_path) in str(caught.value)
    assert server.log_path.exists()
    assert find_session_members(server.java_pid) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        pytest.param({"vmargs": "-XX:+NoSuchOption"}, "NoSuchOption", id="java"),
        pytest.param({"inference_address": "nonsense"}, "nonsense", id="torchserve"),
    ],
)
def test_server_that_ends_at_start_is_reported_with_its_words(
    make_mar: MakeMar, tmp_path: Path, overrides: dict, words: str
) -> None:
    logs = tmp_path / "logs"
    settings = make_settings(make_mar(), overrides=overrides, log_dir=logs)
    with pytest.raises(ExpectedError, match=words), TorchServe(settings):
        pass


def test_failed_start_keeps_its_logs_and_nothing_else(make_mar: MakeMar) -> None:
    settings = make_settings(make_mar(), overrides={"vmargs": "-XX:+NoSuchOption"})
    server = TorchServe(settings)
    with pytest.raises(ExpectedError), server:
        pass
    folder = server.log_dir.parent
    assert [path.name for path in folder.iterdir()] == ["logs"]
    shutil.rmtree(folder)


def test_taken_port_is_named_before_anything_starts(make_mar: MakeMar) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = TorchServe(make_settings(make_mar(), management_port=port))
        with pytest.raises(ExpectedError, match=rf":{port}.*--management-port"):
            server.start()


def test_archive_that_is_none_is_named(tmp_path: Path) -> None:
    mar = tmp_path / "store" / "broken.mar"
    mar.parent.mkdir()
    mar.write_bytes(b"not a zip")
    with pytest.raises(ExpectedError, match="broken.mar is not a TorchServe archive"):
        TorchServe(make_settings(mar)).start()


def test_token_auth_closes_the_door_to_those_without(make_mar: MakeMar) -> None:
    with TorchServe(make_settings(make_mar(), token_auth=True)) as server:
        url = f"{server.inference_url}/predictions/echo"
        token = {"Authorization": f"Bearer {server.read_token('inference')}"}
        assert httpx.post(url, content=b"abc", trust_env=False).status_code == 400
        reply = httpx.post(url, content=b"abc", headers=token, trust_env=False)
        assert reply.text == "3"
