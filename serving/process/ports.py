"""Finds free TCP ports and refuses taken ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from offpath.handler.errors import ExpectedError

# Linux gives outgoing connections the ports from 32768 on. One of them could take a port in the
# seconds until its server binds it. Kubernetes has 30000 to 32767 for its services.
PORTS = range(20000, 30000)
TRIES = 20


def resolve_ports(host: str, ports: Sequence[int]) -> list[int]:
    """Replaces each 0 by a free port of `host`; all free ports differ.

    The free ports are held open until all are known and released before TorchServe binds them.
    If another process takes one in between, TorchServe's own bind error reports it.
    """
    with ExitStack() as held:
        resolved = []
        for port in ports:
            if port == 0:
                listener = held.enter_context(socket.socket())
                port = _bind_free(listener, host)
            resolved.append(port)
        return resolved


def _bind_free(listener: socket.socket, host: str) -> int:
    for port in random.sample(PORTS, TRIES):
        with suppress(OSError):
            listener.bind((host, port))
            return port
    listener.bind((host, 0))
    return int(listener.getsockname()[1])


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
