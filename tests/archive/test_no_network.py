"""Code of an archive reaches no other host through Python's sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from offpath.archive.no_network import NetworkRefused, network_refused
from tests.guarantees import guarantee

THERE = ("127.0.0.1", 9)
Use = Callable[[socket.socket], object]


@guarantee(
    "Code of archives that are converted",
    "archive/no_network.py",
    '"socket.sendto", "socket.sendmsg", ',
    "",
)
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda udp: udp.sendto(b"secret", THERE), id="sendto"),
        pytest.param(lambda udp: udp.sendmsg([b"secret"], [], 0, THERE), id="sendmsg"),
        pytest.param(lambda udp: udp.connect(THERE), id="connect"),
        pytest.param(lambda udp: udp.bind(("127.0.0.1", 0)), id="bind"),
        pytest.param(lambda udp: socket.gethostbyaddr("127.0.0.1"), id="address-looked-up"),
        pytest.param(lambda udp: socket.getnameinfo(THERE, 0), id="name-looked-up"),
        pytest.param(lambda udp: socket.getaddrinfo("localhost", 9), id="host-looked-up"),
    ],
)
def test_no_way_to_another_host_is_open(use: Use) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        with network_refused(), pytest.raises(NetworkRefused, match="holds all that its workers"):
            use(udp)
        udp.sendto(b"afterwards", THERE)
