"""`offpath batch --ray` on two Ray nodes of this machine, one of which is killed.

    scripts/test.sh --reliability -k offline_on_ray

It installs Ray Data (300 MB) into the cache at its first run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from offpath.profiling.servers.environments import Environment
from offpath.serving.process.ports import resolve_ports
from tests.conftest import build
from tests.support.eventually import eventually
from tests.support.images import jpeg

IMAGES = 600
RAY_DATA = Environment("ray-data", ("ray[data,default]==2.60.0",))

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]


@contextmanager
def node(python: Path, env: dict[str, str], *options: str) -> Iterator[psutil.Popen]:
    """Runs a Ray node with one CPU on the loopback address."""
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    command += ["--node-ip-address=127.0.0.1", f"--object-store-memory={100 << 20}", *options]
    process = psutil.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: psutil.Popen) -> None:
    """Kills a node's processes, as at the loss of a machine."""
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def test_a_killed_node_loses_and_doubles_no_image(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(IMAGES):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(jpeg(size=(640, 480)))
    (tmp_path / "in" / "bad.jpg").write_bytes(b"no image")
    mar = build(tmp_path / "store", "near-free", "near-free")
    python, out = RAY_DATA.ensure(), tmp_path / "out"
    (port,) = resolve_ports("127.0.0.1", [0])
    address = f"127.0.0.1:{port}"
    batch = [str(python), "-m", "offpath", "batch", "--ray", str(mar), str(tmp_path / "in")]
    batch += [str(out), "--json", "--max-errors", "1"]
    with TemporaryDirectory(prefix="r-") as scratch:  # a short path, for sockets
        env = {**os.environ, "PYTHONPATH": os.getcwd(), "RAY_ADDRESS": address}
        env |= {"RAY_TMPDIR": scratch, "RAY_USAGE_STATS_ENABLED": "0"}
        head = ("--head", f"--port={port}", "--include-dashboard=false")
        with node(python, env, *head), node(python, env, f"--address={address}") as other:
            # A node has joined once it has a worker.
            eventually(lambda: len(other.children(recursive=True)) > 1)
            process = subprocess.Popen(batch, env=env, stdout=subprocess.PIPE)
            eventually(lambda: process.poll() is not None or len(list(out.glob("part-*"))) >= 3)
            assert process.poll() is None, "it ended before the kill"
            kill_all(other)
            summary = json.loads(process.communicate()[0])
    assert process.returncode == 0
    lines = [line for file in sorted(out.glob("part-*.jsonl")) for line in file.open()]
    names = [str(tmp_path / "in" / f"{n}.jpg") for n in (*range(IMAGES), "bad")]
    assert Counter(json.loads(line)["input"] for line in lines) == dict.fromkeys(names, 1)
    assert (summary["images"], summary["failed"]) == (IMAGES + 1, 1)
