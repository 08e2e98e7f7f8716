"""Files that a cleaner of /tmp removed are made again, although servers lock their folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from select import select

import httpx
import pytest

from offpath.serving.check.running import check_server
from offpath.serving.finding import State
from offpath.serving.front.reload_requests import ask_door
from tests.guarantees import guarantee
from tests.support.eventually import MAX_S, eventually
from tests.support.front import ServeProcess
from tests.support.images import jpeg

pytestmark = pytest.mark.server
SLOW = pytest.mark.slow
TORCHSERVE = ("--server", "torchserve", "--front")


def remove_sockets(run: Path) -> None:
    for path in run.parent.glob(f"{run.name}/*.sock*"):
        path.unlink()


def remove_servers_folder(run: Path) -> None:
    """Removes the folder to which the door's links lead."""
    shutil.rmtree((run / "metrics.sock").resolve().parent)


@guarantee(
    "Something removes a server's files in `/tmp`",
    "serving/process/tmp_folders.py",
    "if not os.path.lexists(path):",
    "if False:",
)
@pytest.mark.parametrize(
    ("options", "remove"),
    [
        pytest.param(("--server", "granian", "--front"), remove_sockets, id="sockets"),
        pytest.param(("--server", "granian"), shutil.rmtree, id="granian", marks=SLOW),
        pytest.param(TORCHSERVE, shutil.rmtree, id="door", marks=SLOW),
        pytest.param(TORCHSERVE, remove_servers_folder, id="behind-the-door", marks=SLOW),
    ],
)
def test_a_server_starts_again_without_its_files(
    model_store: Path, tmp_path: Path, options: tuple[str, ...], remove: Callable[[Path], None]
) -> None:
    server = ServeProcess(tmp_path / "errors", "--model-store", model_store, *options)
    try:
        before = server.url
        remove(server.run)
        assert select([server.process.stdout], [], [], 2 * MAX_S)[0], "it did not start again"
        server.read_ready()
        reply = httpx.post(f"{server.url}/predictions/near-free", content=jpeg())
        assert reply.status_code == 200
        assert State.WRONG not in {one.state for one in check_server(server.url)}
        if "--front" in options:
            assert server.url == before
            eventually(server.is_healthy)
            change = {"canary": [], "shadow": [], "stop": []}
            assert ask_door(server.run, change)["ended"] == []
    finally:
        server.terminate()
