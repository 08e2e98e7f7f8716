"""`offpath batch --ray` on a Ray cluster of two nodes, one of which is killed.

    scripts/test.sh --reliability -k offline_on_ray

It installs Ray Data (300 MB) into the cache at its first run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from offpath.profiling.servers.confined import NAMESPACE, why_no_namespace
from offpath.profiling.servers.environments import Environment
from tests.conftest import build
from tests.support.images import jpeg
from tests.support.ray_cluster import RayCluster, ray_cluster

IMAGES = 1200
CPUS = {"head": 1, "one": 2}
RAY_DATA = Environment("ray-data", ("ray[data,default]==2.60.0",))

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]


def test_a_killed_node_loses_and_doubles_no_image(tmp_path: Path) -> None:
    why_not = why_no_namespace()
    if why_not is not None:
        pytest.skip(why_not)
    (tmp_path / "in").mkdir()
    body = jpeg(size=(640, 480))
    for number in range(IMAGES):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(body)
    (tmp_path / "in" / "bad.jpg").write_bytes(b"no image")
    build(tmp_path / "store", "near-free", "near-free")
    python = RAY_DATA.ensure()
    program = [sys.executable, "-m", "tests.reliability.test_offline_on_ray"]
    subprocess.run([*NAMESPACE, *program, str(tmp_path), str(python)], check=True)
    files = sorted((tmp_path / "out").glob("part-*.jsonl"))
    lines = [line for file in files for line in file.open()]
    counts = Counter(json.loads(line)["input"] for line in lines)
    names = [str(tmp_path / "in" / f"{n}.jpg") for n in (*range(IMAGES), "bad")]
    assert counts == dict.fromkeys(names, 1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    print(summary)
    assert (summary["images"], summary["failed"]) == (IMAGES + 1, 1)


def run_and_kill(folder: Path, python: Path) -> None:
    """Runs the command on a new cluster, and kills a node after the first parts."""
    environ = {"PYTHONPATH": os.getcwd()}
    with ray_cluster(python, folder, environ, CPUS) as cluster:
        process = start(cluster, folder, python)
        while len(list((folder / "out").glob("part-*"))) < 5:
            if process.poll() is not None:
                raise SystemExit(f"ended before the kill: {process.returncode}")
            time.sleep(0.1)
        cluster.nodes[1].kill()
        if process.wait(900):
            raise SystemExit(f"the command failed: {process.returncode}")


def start(cluster: RayCluster, folder: Path, python: Path) -> subprocess.Popen[bytes]:
    place = [str(folder / name) for name in ("store/near-free.mar", "in", "out")]
    command = ["-m", "offpath", "batch", "--ray", *place, "--json", "--max-errors", "1"]
    # A driver has to be on a node, because it speaks to the node's own sockets.
    node = f"nsenter --net --mount --pid --target {cluster.head.find_first().pid}"
    with open(folder / "summary.json", "wb") as output:
        return subprocess.Popen(
            [*node.split(), str(python), *command],
            env=cluster.make_environment(),
            stdout=output,
        )


if __name__ == "__main__":
    run_and_kill(Path(sys.argv[1]), Path(sys.argv[2]))
