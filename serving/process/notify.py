"""Tells systemd that a service with `Type=notify` is ready (man sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket

READY = b"READY=1"


def notify_ready() -> None:
    """Sends READY to the socket that systemd has named, if it has named one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name that is no file
        address = f"\0{address[1:]}"
    # A server that cannot tell systemd serves all the same.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.sendto(READY, address)
