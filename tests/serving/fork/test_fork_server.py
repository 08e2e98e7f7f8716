"""The forked worker of a TorchServe, and what happens when its processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.serving.process.processes import find_fork_helpers, is_running
from offpath.serving.torchserve.launch import FORK_SOCKET
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.support.eventually import eventually

pytestmark = pytest.mark.server


@pytest.fixture
def server(echo_server: TorchServe) -> TorchServe:
    return echo_server


def answers(server: TorchServe) -> bool:
    url = f"{server.inference_url}/predictions/echo"
    reply = httpx.post(url, content=b"abc", trust_env=False)
    return (reply.status_code, reply.text) == (200, "3")


def helpers(server: TorchServe, script: str) -> list[int]:
    """Process ids of the launchers or of the fork server."""
    return [
        pid
        for pid in find_fork_helpers(server.pid)
        if any(part.endswith(script) for part in psutil.Process(pid).cmdline())
    ]


def test_workers_share_the_pages_of_torch(server: TorchServe) -> None:
    (worker,) = server.worker_pids()
    memory = psutil.Process(worker).memory_full_info()
    assert memory.rss > 200e6  # torch is imported
    assert memory.uss < 0.5 * memory.rss


@pytest.mark.parametrize("victim", ["worker", "launcher"])
def test_killed_worker_is_replaced_and_nothing_of_it_stays(server: TorchServe, victim: str) -> None:
    (worker,), (launcher,) = server.worker_pids(), helpers(server, "fork_launcher.py")
    gone = [psutil.Process(worker), psutil.Process(launcher)]
    os.kill(worker if victim == "worker" else launcher, signal.SIGKILL)
    eventually(lambda: not any(is_running(process) for process in gone))
    eventually(lambda: server.worker_pids() not in ([], [worker]))
    eventually(lambda: answers(server))
    assert helpers(server, "fork_launcher.py") not in ([], [launcher])


@guarantee(
    "The fork server is killed",
    "serving/fork/fork_launcher.py",
    "except (FileNotFoundError, ConnectionRefusedError):",
    "except FileNotFoundError:",
)
def test_killed_fork_server_takes_its_workers_along_and_is_replaced(server: TorchServe) -> None:
    (worker,), (forker,) = server.worker_pids(), helpers(server, "fork_server.py")
    gone = [psutil.Process(worker), psutil.Process(forker)]
    os.kill(forker, signal.SIGKILL)
    eventually(lambda: not any(is_running(process) for process in gone))
    eventually(lambda: server.worker_pids() not in ([], [worker]))
    eventually(lambda: answers(server))
    assert helpers(server, "fork_server.py") not in ([], [forker])


def test_launcher_without_a_fork_server_runs_plain_python(
    server: TorchServe, tmp_path: Path
) -> None:
    script = tmp_path / "model_service_worker.py"
    script.write_text("import os, sys; print(sys.argv[1], os.getcwd())")
    launcher = Path(server.log_dir.parent / "python")
    lines = launcher.read_text().replace(FORK_SOCKET, "nowhere/fork.sock")
    other = tmp_path / "python"
    other.write_text(lines)
    other.chmod(0o700)
    done = subprocess.run([other, script, "argument"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["argument", str(tmp_path)]
    assert "starting a plain worker" in done.stderr
