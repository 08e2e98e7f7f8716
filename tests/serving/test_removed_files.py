"""Files that a cleaner of /tmp removed are made again, although servers lock their folders."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from select import select

import httpx
import pytest

from offpath.serving.check.running import check_server
from offpath.serving.finding import State
from offpath.serving.front.reload_requests import request_change
from tests.support.eventually import MAX_S, eventually
from tests.support.guarantees import guarantee
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
    model_store: Path, options: tuple[str, ...], remove: Callable[[Path], None]
) -> None:
    command = [sys.executable, "-m", "offpath", "serve", "--json", "--model-store"]
    command += [str(model_store), "--port", "0", "--metrics-port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            before = json.loads(process.stdout.readline())
            remove(Path(before["management"].removeprefix("unix:")).parent)
            assert select([process.stdout], [], [], 2 * MAX_S)[0], "it did not start again"
            after = json.loads(process.stdout.readline())
            reply = httpx.post(f"{after['inference']}/predictions/near-free", content=jpeg())
            assert reply.status_code == 200
            assert State.WRONG not in {one.state for one in check_server(after["inference"])}
            if "--front" in options:
                assert after["inference"] == before["inference"]
                eventually(lambda: httpx.get(f"{after['inference']}/ping").status_code == 200)
                run = Path(after["management"].removeprefix("unix:")).parent
                assert request_change(run, {"canary": [], "shadow": [], "stop": []})["ended"] == []
        finally:
            process.terminate()
            process.wait(60)
