"""`offpath check` and `offpath canary` of servers that other processes hardly see.

Where a server hides nothing, every address that it prints is tried beside the tests of its kind:
`check_addresses` of tests/support/front.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from offpath.errors import ExpectedError
from offpath.serving.front.reload_requests import SOCKET
from offpath.serving.server.management import ManagementClient
from offpath.serving.servers_here import find_doors
from tests.support.answering_server import answering_server
from tests.support.front import ServeProcess, check_addresses

pytestmark = pytest.mark.server
# Hides the temporary folder from other processes, as systemd's PrivateTmp does.
PRIVATE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
NOTHING: dict[str, list[str]] = {"canary": [], "shadow": [], "ended": [], "suspended": []}


def show_canaries(url: str) -> dict[str, Any]:
    """Returns what `offpath canary` prints, from a folder in which no server was started."""
    command = [sys.executable, "-m", "offpath", "canary", "--json", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("server", ["granian", pytest.param("torchserve", marks=pytest.mark.slow)])
def test_a_server_with_a_private_temporary_folder_is_checked(
    model_store: Path, tmp_path: Path, server: str
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this user cannot make a mount namespace")
    hide = tempfile.mkdtemp(prefix="p")
    options = (
        "--server",
        server,
        "--front",
        "--log-dir",
        tmp_path / "logs",
        "--model-store",
        model_store,
        "near-free",
    )
    try:
        prefix = [*PRIVATE, hide, "env", f"TMPDIR={hide}"]
        serving = ServeProcess(tmp_path / "errors", *options, prefix=prefix)
        try:
            assert not serving.run.exists()
            addresses = [serving.ready["inference"], serving.ready["management"]]
            check_addresses(addresses)
            for url in addresses:
                assert show_canaries(url) == NOTHING
        finally:
            serving.terminate()
    finally:
        shutil.rmtree(hide)


def test_an_nginx_that_checks_the_configuration_is_no_second_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nginx.conf").write_text("listen 127.0.0.1:8080;\n")
    (tmp_path / SOCKET).touch()
    command = ["nginx", "-c", f"{tmp_path}/nginx.conf"]
    nginx = MagicMock(pid=0, **{"cmdline.return_value": command, "ppid.return_value": 1})
    monkeypatch.setattr("psutil.process_iter", lambda: [nginx, nginx])
    assert len(find_doors()) == 1


def test_an_address_without_a_management_api_is_named() -> None:
    with answering_server() as server, ManagementClient(server.url) as management:
        with pytest.raises(ExpectedError, match="is no management API"):
            management.list_models()
