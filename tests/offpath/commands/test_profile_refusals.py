"""What `offpath profile` refuses: said in a line, before a server or a handler starts."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from offpath import cli
from offpath.serving.mar_file import MANIFEST
from tests.support.answering_server import answering_server
from tests.support.pictures import jpeg


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """Where the command runs: no pictures, one that is none or half of one, a strange archive."""
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("damaged").mkdir()
    Path("damaged/a.jpg").write_bytes(b"no picture")
    Path("half").mkdir()
    picture = jpeg(size=(64, 64))
    Path("half/a.jpg").write_bytes(picture[: len(picture) * 3 // 4])
    with zipfile.ZipFile("bare.mar", "w") as archive:
        archive.writestr(MANIFEST, json.dumps({"model": {"modelName": "bare"}}))


def refuse(argv: list[str], capsys) -> tuple[int, str]:
    """Exit code and message; the load's end shows in the answering server as a traceback."""
    with pytest.raises(SystemExit) as ended:
        cli.run(["profile", *argv])
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("stages --handler gone.py:A", 2, "does not exist"),
        ("stages --mar gone.mar", 2, "no archive"),
        ("stages --images gone", 2, "no workload"),
        ("stages --images damaged", 2, "is no picture"),
        ("stages --images half", 1, "refused"),
        ("lines --images empty", 2, "no photographs"),
        ("stages --requests 0", 2, "0"),
        ("stages --model vgg", 2, "near-free"),
        ("server --url http://127.0.0.1:9", 1, "no server at"),
        ("server --url here", 2, "expected http://HOST:PORT"),
        ("server --mar gone.mar", 2, "no archive at gone.mar"),
        ("server --mar bare.mar", 2, "no handler"),
        ("server --mar bare.mar --model resnet50", 2, "--mar"),
        ("server --images gone", 2, "photos-55k"),
        ("server --images empty", 2, "no photographs"),
        ("server --handler nginx", 2, "nginx"),
        ("server --duration 1", 2, "--duration"),
        ("server --served-as a", 2, "only with --url"),
        ("server --url http://h --cprofile", 2, "--cprofile"),
        ("show gone.json", 2, "cannot read"),
        ("compare gone.json", 2, "Missing argument"),
        ("compare gone.json gone.json", 2, "cannot read"),
    ],
)
def test_wrong_input_is_said(command: str, code: int, said: str, capsys):
    ended, error = refuse(command.split(), capsys)
    assert (ended, said in error) == (code, True), error


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        pytest.param(500, b"broken", "answered 500 to /ping: broken", id="not-well"),
        pytest.param(200, b"", "no ts_inference_requests_total", id="no-torchserve"),
    ],
)
def test_a_server_without_an_account_is_said(status, body, said, capsys):
    with answering_server() as server:
        server.status, server.body = status, body
        server.ping = None
        ports = ("--url", "--metrics-url", "--management-url")
        argv = [f"{port}={server.url}" for port in ports]
        argv += ["--served-as=m", "--duration=2", "--warm-up=0"]
        code, error = refuse(["server", *argv], capsys)
    assert code == 1 and said in error
