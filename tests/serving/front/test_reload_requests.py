from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.front.reload_requests import SOCKET, ReloadRequests, request_reload
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


def ask(requests: ReloadRequests, folder: Path, server: str | None = None) -> Future[None]:
    """Asks for a reload; the request has arrived on return."""
    requests.accept_new()  # accepts the requests that came earlier
    before = len(requests._waiting)
    future = ThreadPoolExecutor(1).submit(request_reload, folder, 30, server)
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
    assert (first.result(30), other.result(30)) == (None, None)
    assert requests.accept_new() and not later.done()
    assert requests.begin() == "torchserve"
    requests.end(None)
    assert later.result(30) is None


def test_request_whose_command_was_interrupted_disturbs_nobody(
    requests: ReloadRequests, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.connect(SOCKET)
    patient = ask(requests, folder)
    requests.begin()
    requests.end(None)
    assert patient.result(30) is None


def test_requests_of_a_door_that_ends_fail(requests: ReloadRequests, folder: Path) -> None:
    began = ask(requests, folder)
    requests.begin()
    waiting = ask(requests, folder)
    requests.close()
    for future in (began, waiting):
        with pytest.raises(ExpectedError, match="ended during the reload"):
            future.result(30)
