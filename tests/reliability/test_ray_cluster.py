"""A Ray cluster of three nodes under load, one killed and another drained in each round.

    scripts/test.sh --reliability -k ray_cluster

Skipped if Ray is not set up (`offpath bench setup offpath-ray`) or namespaces are not permitted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from offpath.client import Client, Prediction, ServerUnreachable
from offpath.deploy.ray.export import export_ray
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import archives
from offpath.profiling.servers.confined import NAMESPACE
from tests.support.bucket import read_out
from tests.support.ray_cluster import Node, RayCluster, balancer, ray_cluster, wait_until

ROUNDS = int(os.environ.get("OFFPATH_RAY_ROUNDS", "10"))
BATCH_SIZE, REPLICAS = 8, 3
# CPUs in Ray's counting: all replicas fit on either worker alone.
CPUS = {"head": 1, "one": 2, "two": 2}
CLIENTS, RETRIES = 32, 5
# Pause between a client's requests: starting nodes need the cores too.
PAUSE_S = float(os.environ.get("OFFPATH_RAY_PAUSE_S", "0.15"))
SETTLE_S = 2.0

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(120 * ROUNDS + 600)]


class Try(NamedTuple):
    """One request; status 0 means that no answer came."""

    began_s: float
    ended_s: float
    status: int
    request_id: str


class Watched(Client):
    """A client that retries and records each try."""

    def __init__(self, url: str, tries: list[Try]) -> None:
        super().__init__(url, archives.NAME, retries=RETRIES)
        self._tries = tries

    def _ask(self, *arguments: Any) -> Prediction:
        begin_s, status, request_id = time.monotonic(), 0, ""
        try:
            prediction = super()._ask(*arguments)
            status, request_id = prediction.status, prediction.request_id or ""
            return prediction
        finally:
            self._tries.append(Try(begin_s, time.monotonic(), status, request_id))


def make_application(folder: Path) -> None:
    """Exports FOLDER/application, which logs to FOLDER/log."""
    log = {"uri": f"file://{folder / 'log'}", "segment_max_age_s": 2}
    model = load_model("near-free")
    config = archives.offpath_config(model, 1, prediction_log=log)
    (folder / "store").mkdir()
    archive = archives.build_offpath(model, {**config, "batchSize": BATCH_SIZE}, folder / "store")
    # The balancer runs on another node.
    export_ray(archive, folder / "application", (REPLICAS, REPLICAS), host="0.0.0.0")


def test_a_killed_node_fails_what_is_in_flight_and_a_drained_one_nothing(
    tmp_path: Path, ray_python: Path
) -> None:
    make_application(tmp_path)
    program = [sys.executable, "-m", "tests.reliability.test_ray_cluster"]
    subprocess.run([*NAMESPACE, *program, str(tmp_path), str(ray_python)], check=True)
    found = json.loads((tmp_path / "rounds.json").read_text())
    tries = [Try(*one) for one in found["tries"]]
    left = count_records(tmp_path)
    for node in CPUS:
        ship(tmp_path / node / "spool")
    answered = {one.request_id for one in tries if one.status == 200}
    failed = [one for one in tries if one.status != 200]
    records = count_records(tmp_path)
    lost = answered - records.keys()
    double = {one for one in answered if records[one] > 1}
    print(
        f"\n{len(answered):,} requests answered, {len(answered - left.keys()):,} of them in the log"
        f" only after `logs ship`; {len(lost)} lost, {len(double)} double;"
        f" {found['given_up']} given up by clients that retry; {len(failed)} tries failed:"
        f" {dict(Counter(one.status for one in failed))}"
    )
    assert (lost, double, found["given_up"]) == (set(), set(), 0)
    # Each failed try was in flight while a node was killed, and none while one was drained.
    kills = found["kills"]
    assert [t for t in failed if not any(t.began_s <= b and a <= t.ended_s for a, b in kills)] == []
    assert len(answered) > 50 * ROUNDS


def ship(spool: Path) -> None:
    """Runs `offpath logs ship`, as an operator would on a node's volume."""
    command = [sys.executable, "-m", "offpath", "logs", "ship", "--spool", str(spool)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def count_records(folder: Path) -> Counter[str]:
    """Counts each request's records; an event id is the reply's id and a suffix."""
    counts: Counter[str] = Counter()
    for event_id, count in read_out(folder / "log").items():
        counts[event_id.rpartition(".")[0]] += count
    return counts


@contextmanager
def sending(url: str, tries: list[Try], given_up: list[int]) -> Iterator[None]:
    """Runs clients during the block; they note their tries, and when they gave up."""
    stopped, bodies = threading.Event(), load_workload("photos-55k").read()

    def send(turn: int) -> None:
        with Watched(url, tries) as client:
            while not stopped.wait(PAUSE_S):
                try:
                    is_ok = client.try_predict(bodies[turn % len(bodies)]).is_ok
                except ServerUnreachable:
                    is_ok = False
                if not is_ok:
                    given_up.append(turn)
                turn += 1

    threads = [threading.Thread(target=send, args=(turn,)) for turn in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def main(folder: Path, python: Path) -> None:
    """Runs the rounds on a cluster like the manifest's pods, and writes what was seen."""
    application = folder / "application"
    service = yaml.safe_load((application / "rayservice.yaml").read_text())
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (pod,) = group["template"]["spec"]["containers"]
    (hook,) = pod["lifecycle"]["preStop"].values()
    environ = {one["name"]: one["value"] for one in pod["env"]}
    # The image keeps it at another path.
    environ["PYTHONPATH"] = str(application)
    tries: list[Try] = []
    given_up: list[int] = []
    kills = []
    with ray_cluster(python, folder, environ, CPUS) as cluster:
        cluster.deploy(application)
        wait_until(lambda: is_whole(cluster))
        with balancer(cluster) as url, sending(url, tries, given_up):
            for _ in range(ROUNDS):
                replicas = list(cluster.replicas("RUNNING").values())
                # The busiest first: after a loss, the replicas are wherever there was room.
                killed, drained = sorted(
                    cluster.nodes[1:], key=lambda node: -replicas.count(node.address)
                )
                time.sleep(SETTLE_S)
                kills.append(kill(cluster, killed))
                time.sleep(SETTLE_S)
                drain(cluster, drained, hook["command"])
            time.sleep(SETTLE_S)
    seen = {"tries": tries, "given_up": len(given_up), "kills": kills}
    (folder / "rounds.json").write_text(json.dumps(seen))


def kill(cluster: RayCluster, node: Node) -> tuple[float, float]:
    """Kills and starts a node; returns when its first and its last process was gone."""
    before = cluster.node_ids()[node.address]
    lost = {i for i, at in cluster.replicas().items() if at == node.address}
    begin_s = time.monotonic()
    node.kill()
    end_s = time.monotonic()
    cluster.start(node)
    wait_until(lambda: is_whole(cluster, lost))
    wait_until(lambda: cluster.node_ids().get(node.address, before) != before)
    return begin_s, end_s


def drain(cluster: RayCluster, node: Node, hook: list[str]) -> None:
    """Ends a node as a pod's end does, and starts it again."""
    before = cluster.node_ids()[node.address]
    cluster.end(node, hook)
    wait_until(lambda: is_whole(cluster))
    cluster.start(node)
    wait_until(lambda: cluster.node_ids().get(node.address, before) != before)


def is_whole(cluster: RayCluster, lost: set[str] = set()) -> bool:
    """Tells whether all replicas run, and none of those that were lost."""
    running = cluster.replicas("RUNNING")
    return len(running) == REPLICAS and not lost & set(running)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
