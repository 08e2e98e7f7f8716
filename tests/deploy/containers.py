"""A container's processes, run here with the container's own scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from offpath.serving.process.ports import resolve_ports
from tests.support.eventually import eventually
from tests.support.front import log_variables, read_log
from tests.support.monitoring import DEPLOY


def read_event_ids(folder: Path) -> Counter[str]:
    """Counts each event id in the log."""
    return Counter(str(record["event_id"]) for record in read_log(folder))


@contextmanager
def run_container(
    command: Sequence[str], folder: Path, port_variable: str, ping: str, **env: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs a command that finds our scripts; yields its process and port once `ping` is 200."""
    (port,) = resolve_ports("0.0.0.0", [0])
    scripts = f"{DEPLOY / 'kserve'}:{DEPLOY / 'container'}:{Path(sys.executable).parent}"
    env = {
        **os.environ,
        **log_variables(folder),
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "OFFPATH_LOG_DIR": str(folder / "logs"),
        port_variable: str(port),
        **env,
    }
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def is_ready() -> bool:
        if process.poll() is not None:
            pytest.fail((folder / "output").read_text())
        try:
            return httpx.get(f"http://127.0.0.1:{port}{ping}").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        eventually(is_ready)
        yield process, port
    finally:
        process.terminate()
        process.wait()
