"""The fork server while it can open no more descriptors; all in this process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.serving.fork.children import Children
from offpath.serving.fork.fork_request import STREAMS, ForkRequest, receive_request
from offpath.serving.fork.fork_server import ForkServer
from tests.guarantees import guarantee
from tests.serving.processes import no_new_descriptors

REQUEST = ForkRequest(["worker.py"], {}, "/")


def list_numbers() -> set[int]:
    listed = os.listdir("/proc/self/fd")  # with the one that lists them
    return {int(number) for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_nothing_is_forked_that_could_not_be_watched() -> None:
    children = Children()
    with no_new_descriptors(os.getpid()), pytest.raises(OSError) as raised:
        children.fork("worker")
    assert raised.value.errno == errno.EMFILE and not children
    children.selector.close()


@guarantee("Descriptors that run out")
def test_a_request_without_all_of_its_streams_is_refused(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    REQUEST.send(theirs)
    before = list_numbers()
    free = (number for number in range(1000) if number not in before)
    places = [next(free) for _ in range(STREAMS)]
    with no_new_descriptors(os.getpid(), least=places[-1]), pytest.raises(OSError) as raised:
        receive_request(ours)
    assert raised.value.errno == errno.EMFILE and list_numbers() == before


def test_a_launcher_whose_worker_cannot_be_forked_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: object) -> int:
        raise OSError(errno.EMFILE, "too many")

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as launcher:
        listener.bind(str(tmp_path / "fork.sock"))
        listener.listen()
        server = ForkServer(listener, os.getpid())
        monkeypatch.setattr(server._children, "fork", refuse)
        launcher.connect(str(tmp_path / "fork.sock"))
        REQUEST.send(launcher)
        before = list_numbers()
        assert server._accept() is None
        assert launcher.recv(1) == b"" and list_numbers() == before
