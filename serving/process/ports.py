"""Finds free TCP ports and refuses taken ones."""

from __future__ import annotations

import ipaddress
import random
import re
import socket
from collections.abc import Sequence
from functools import lru_cache

from offpath.errors import ExpectedError

# Linux gives outgoing connections the ports from 32768 on. One of them could take a port in the
# seconds until its server binds it. Kubernetes has 30000 to 32767 for its services.
PORTS = range(20000, 30000)
# A port is free until its server binds it, which takes seconds: another process of ours must not
# choose it meanwhile. An abstract Unix socket lives in the same network namespace as the port and
# ends with its process.
RESERVATIONS: list[socket.socket] = []
MAX_NAME_CHARS = 300
WRONG_HOST = "this server only answers to names of loopback; name others with --allow-host"


def resolve_ports(host: str, ports: Sequence[int]) -> list[int]:
    """Replaces each 0 by a free port of `host`, which offpath chooses no more until this ends.

    Raises:
        ExpectedError: no port of PORTS is free.
    """
    return [port or _reserve(host) for port in ports]


def _reserve(host: str) -> int:
    for port in random.sample(PORTS, len(PORTS)):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0offpath-port-{port}")
            with socket.socket() as listener:
                listener.bind((host, port))
        except OSError:
            reservation.close()
            continue
        RESERVATIONS.append(reservation)
        return port
    raise ExpectedError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on {host}; name one")


def is_loopback(host: str) -> bool:
    """Tells whether an address, or `localhost`, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def may_be_host(host: str, names: tuple[str, ...] = ()) -> bool:
    """Tells whether a Host header is a name of loopback, or one of `names` in lower case.

    Otherwise a web page whose name leads to loopback could use a server there.
    """
    return _may_be_host(host[:MAX_NAME_CHARS], names)


@lru_cache(maxsize=256)
def _may_be_host(host: str, names: tuple[str, ...]) -> bool:
    name = re.sub(r":[0-9]+$", "", host).lower()
    return is_loopback(name) or name in names


def check_port_free(host: str, port: int, option: str) -> None:
    """Raises ExpectedError if `host:port` is taken; the message names `option`."""
    with socket.socket() as listener:
        # A port in TIME_WAIT counts as free, as for TorchServe's listener.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ExpectedError(
                f"cannot listen on {host}:{port} ({error.strerror}); stop the process that uses "
                f"it, or choose another port with {option} (0 takes a free one)"
            ) from error
