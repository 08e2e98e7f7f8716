from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.serving.process.in_flight import count_unanswered
from offpath.serving.process.processes import find_family
from tests.offpath.conftest import read_json_keys
from tests.support import echo_archive
from tests.support.echo_archive import MakeMar
from tests.support.eventually import eventually
from tests.support.front import load

FREE_PORTS = ["--port", "0", "--metrics-port", "0"]
IN_FLIGHT = 64


def start_serve(mar: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "offpath", "serve"]
    command += ["--model-store", str(mar.parent)]
    return subprocess.Popen(
        [*command, *FREE_PORTS, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def find_java_child(process: subprocess.Popen[str]) -> int:
    def find() -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            pids = [child.pid for child in children if child.name() == "java"]
            return [pid for pid in pids if find_family(pid)]
        return []

    return eventually(find)[0]


@pytest.mark.server
def test_sighup_is_ignored_and_sigterm_answers_what_is_there_and_leaves_no_process(
    make_mar: MakeMar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No slow request is answered before the signal.
    signalled = tmp_path / "signalled"
    waits = f"while b'slow' in bodies and not os.path.exists('{signalled}'): time.sleep(0.01) #"
    handler = echo_archive.ECHO_HANDLER.replace("time.sleep(", f"import os\n        {waits}")
    monkeypatch.setattr(echo_archive, "ECHO_HANDLER", handler)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0offpath-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@offpath-test-{os.getpid()}")
        process = start_serve(make_mar(config=None), "--sample")
        assert process.stdout is not None and process.stderr is not None
        ready, prediction = (json.loads(process.stdout.readline()) for _ in range(2))
        systemd.setblocking(False)
        assert systemd.recv(100) == b"READY=1"
    assert list(ready) == read_json_keys()["serve"]
    assert [model["batch_size"] for model in ready["models"]] == [1]
    assert (prediction["status"], prediction["file"]) == (200, "espresso.jpg")
    url = f"{ready['inference']}/predictions/echo"
    with load(url, [b"abc"], clients=4) as seen:
        eventually(lambda: seen.statuses[200] > 20)
        process.send_signal(signal.SIGHUP)
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "SIGHUP" in line:
                break
    assert "is ignored" in said[-1] and "--front" in said[-1]
    assert set(seen.statuses) == {200} and not seen.broken and not seen.refused
    java = find_java_child(process)
    # One client: making 64 of them takes as long as answering half of the requests.
    limits = httpx.Limits(max_connections=IN_FLIGHT)
    with httpx.Client(timeout=None, trust_env=False, limits=limits) as http, ThreadPoolExecutor(
        IN_FLIGHT
    ) as pool:
        slow = [pool.submit(http.post, url, content=b"slow") for _ in range(IN_FLIGHT)]
        # Not before the server has them all: a client may be slow to send.
        port = httpx.URL(url).port or 0
        eventually(lambda: count_unanswered(port) >= IN_FLIGHT)
        process.send_signal(signal.SIGTERM)
        signalled.touch()
        answers = [future.result().text for future in slow]
    assert answers == ["4"] * IN_FLIGHT
    _, errors = process.communicate()
    assert process.returncode == 0
    assert any("no model-config.yaml to compare with" in line for line in said)
    assert "--drain-s" not in errors
    assert find_family(java) == []


@pytest.mark.server
def test_a_server_that_ends_by_itself_ends_the_command(make_mar: MakeMar, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    options = ("--server", "granian", "--no-front", "--log-dir", str(log_dir))
    process = start_serve(make_mar(), *options)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert log_dir.stat().st_mode & 0o7 == 0, "every user can read the logs"
        (worker,) = ready["models"][0]["worker_pids"]
        os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == 1 and "ended by itself by SIGKILL" in errors
    finally:
        process.kill()


@pytest.mark.server
@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        pytest.param(signal.SIGTERM, 0, id="sigterm"),
        # By default Ctrl-C ends `offpath bench compare`, whose TorchServe starts.
        pytest.param(signal.SIGINT, 130, id="ctrl-c", marks=pytest.mark.slow),
    ],
)
def test_signal_while_starting_stops_every_process(
    make_mar: MakeMar, number: signal.Signals, exit_code: int
) -> None:
    process = start_serve(make_mar())
    java = find_java_child(process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == exit_code
    assert find_family(java) == []
