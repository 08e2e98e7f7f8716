"""Refusals of `offpath profile` after it has started; the rest is in test_wrong_input.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath import cli
from tests.support.answering_server import answering_server
from tests.support.pictures import jpeg


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """Makes the working folder, with a workload whose only file is three quarters of a JPEG."""
    monkeypatch.chdir(tmp_path)
    Path("half").mkdir()
    image = jpeg(size=(64, 64))
    Path("half/a.jpg").write_bytes(image[: len(image) * 3 // 4])


def refuse(argv: list[str], capsys) -> tuple[int, str]:
    """Runs the command; returns its exit code and what it wrote to stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.run(["profile", *argv])
    return int(ended.value.code or 0), capsys.readouterr().err


def test_a_workload_with_half_an_image_is_refused(capsys):
    code, error = refuse(["stages", "--images", "half"], capsys)
    assert code == 1 and "refused" in error


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
