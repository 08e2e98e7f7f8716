from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.front.reload_requests import (
    SOCKET,
    ReloadRequests,
    ask_door,
)
from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from tests.support.eventually import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder as the door makes it."""
    folder = make_short_tmp_dir()
    yield folder
    remove_folder(folder)


@pytest.fixture
def requests(folder: Path) -> Iterator[ReloadRequests]:
    requests = ReloadRequests()
    requests.open(folder)
    yield requests
    requests.close()


def ask(requests: ReloadRequests, folder: Path, server: str | None = None) -> Future[dict]:
    """Asks for a reload; the request has arrived on return."""
    requests.accept_new()  # accepts the requests that came earlier
    before = len(requests._waiting)
    future = ThreadPoolExecutor(1).submit(ask_door, folder, {"server": server})
    eventually(lambda: requests.accept_new() and len(requests._waiting) > before)
    return future


def test_requests_for_another_kind_of_server_wait_for_the_next_reload(
    requests: ReloadRequests, folder: Path
) -> None:
    first = ask(requests, folder)
    other = ask(requests, folder, "granian")
    later = ask(requests, folder, "torchserve")
    assert requests.begin() == "granian"
    requests.end(None)
    assert (first.result(30), other.result(30)) == ({}, {})
    assert requests.accept_new() and not later.done()
    assert requests.begin() == "torchserve"
    requests.end(None)
    assert later.result(30) == {}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[]", id="list"),
        pytest.param(b"{", id="no-json"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(b" " * 2_000_000, id="endless"),
        pytest.param(b'{"server": null, "canary": []}', id="both-kinds"),
        pytest.param(b'{"canary": ["a=1:5%"], "mirror": []}', id="another-version"),
    ],
)
def test_request_that_cannot_be_read_gets_a_failure_and_ends_nothing(
    requests: ReloadRequests, folder: Path, body: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as command, ThreadPoolExecutor(1) as pool:
        command.connect(str(folder / SOCKET))
        pool.submit(send_all, command, body)
        requests.accept_new()
        (failure,) = json.loads(command.recv(4096)).values()
    assert "cannot read the request" in failure
    assert requests.accept_new() is False


def send_all(command: socket.socket, body: bytes) -> None:
    with contextlib.suppress(OSError):  # more than the door reads
        command.sendall(body)
        command.shutdown(socket.SHUT_WR)


def test_change_that_the_door_cannot_make_gets_its_reason(folder: Path) -> None:
    def fail(**change: list[str]) -> dict[str, list[str]]:
        raise OSError(28, "No space left on device")

    requests = ReloadRequests(fail)
    requests.open(folder)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_door, folder, {"canary": []})
        eventually(lambda: requests.accept_new() or asked.done())
        with pytest.raises(ExpectedError, match="No space left"):
            asked.result(30)
    requests.close()


def test_request_whose_command_was_interrupted_disturbs_nobody(
    requests: ReloadRequests, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.connect(SOCKET)
    patient = ask(requests, folder)
    requests.begin()
    requests.end(None)
    assert patient.result(30) == {}


def test_requests_of_a_door_that_ends_fail(requests: ReloadRequests, folder: Path) -> None:
    began = ask(requests, folder)
    requests.begin()
    waiting = ask(requests, folder)
    requests.close()
    for future in (began, waiting):
        with pytest.raises(ExpectedError, match="ended during the reload"):
            future.result(30)
