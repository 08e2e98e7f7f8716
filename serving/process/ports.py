"""Free and taken TCP ports."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from offpath.handler.errors import ExpectedError


def resolve_ports(host: str, ports: Sequence[int]) -> list[int]:
    """Replaces each 0 by a free port of `host`; all returned ports differ.

    The free ones are held open together until all are known, and let go just before TorchServe
    binds them: another process could take one in between, which TorchServe's own bind error
    then reports.
    """
    with ExitStack() as held:
        resolved = []
        for port in ports:
            if port == 0:
                listener = held.enter_context(socket.socket())
                listener.bind((host, 0))
                port = listener.getsockname()[1]
            resolved.append(port)
        return resolved


def check_port_free(host: str, port: int, option: str) -> None:
    """Raises ExpectedError when nothing can listen on `host:port`; `option` names the cure."""
    with socket.socket() as listener:
        # As TorchServe's listener: a port in TIME_WAIT counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ExpectedError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it, or choose "
                f"another with {option} (0: a free one)"
            ) from error
