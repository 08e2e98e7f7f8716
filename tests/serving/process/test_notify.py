from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from offpath.commands.serve_view import notify_ready


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "abstract"])
def test_systemd_is_told_and_without_systemd_nothing_happens(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify") if is_file else f"@offpath-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify_ready()  # nobody listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.setblocking(False)
        notify_ready()
        assert systemd.recv(100) == b"READY=1"
        monkeypatch.delenv("NOTIFY_SOCKET")
        notify_ready()
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
