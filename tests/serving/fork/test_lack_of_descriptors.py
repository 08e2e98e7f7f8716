"""The fork server while it can open no more descriptors; all in this process."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from offpath.serving.fork.fork_request import STREAMS, ForkRequest, receive_request
from tests.guarantees import guarantee
from tests.serving.processes import no_new_descriptors


def list_numbers() -> set[int]:
    listed = os.listdir("/proc/self/fd")  # with the one that lists them
    return {int(number) for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}


@guarantee("Descriptors that run out")
def test_a_request_without_all_of_its_streams_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ForkRequest(["worker.py"], {}, "/").send(theirs)
        before = list_numbers()
        free = (number for number in range(1000) if number not in before)
        places = [next(free) for _ in range(STREAMS)]
        with no_new_descriptors(os.getpid(), least=places[-1]), pytest.raises(OSError) as raised:
            receive_request(ours)
        assert raised.value.errno == errno.EMFILE and list_numbers() == before
