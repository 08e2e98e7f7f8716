"""A load that rises and falls in front of a cluster whose replicas follow it.

    unshare --map-root-user --net python -m tests.support.ray_replicas FOLDER PYTHON

FOLDER/application is the exported application. Writes FOLDER/samples.json: metric -> values.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.archives import NAME
from tests.support.ray_cluster import RayCluster
from tests.support.ray_rounds import open_cluster
from tests.support.watched_load import Tries, watched_load

# The metrics in samples.json.
AT, CLIENTS = "at_s", "clients"
WANTED, RUNNING = "wanted", "running"
ANSWERED, FAILED = "answered", "failed"
FEW, MANY = 4, 32
# Clients and seconds of each phase, long enough for the replicas to come and go.
LOAD_S = (
    (FEW, float(os.environ.get("OFFPATH_RAY_FEW_S", "20"))),
    (MANY, float(os.environ.get("OFFPATH_RAY_MANY_S", "80"))),
    (FEW, float(os.environ.get("OFFPATH_RAY_AFTER_S", "160"))),
)
EVERY_S = 2.0
# A batch waits this long in the model without using a core, so replicas scale on two cores.
WAIT_MS = "100"


class Samples:
    """The metrics over time."""

    def __init__(self, cluster: RayCluster, tries: Tries) -> None:
        self.cluster, self.tries = cluster, tries
        self.begin_s = self.last_s = time.monotonic()
        self.values: defaultdict[str, list[float]] = defaultdict(list)

    def take(self, clients: int) -> None:
        """One."""
        state = self.cluster.ask("/api/serve/applications/")
        (deployment,) = state["applications"][NAME]["deployments"].values()
        now_s = time.monotonic()
        failed = [one for one in self.tries.failed() if self.last_s <= one.ended_s]
        sample = {
            AT: now_s - self.begin_s,
            CLIENTS: clients,
            WANTED: deployment["target_num_replicas"],
            RUNNING: len(self.cluster.replicas("RUNNING")),
            ANSWERED: self.tries.rate(self.last_s, now_s),
            FAILED: len(failed),
        }
        for metric, value in sample.items():
            self.values[metric].append(value)
        self.last_s = now_s


def main(folder: Path, python: Path) -> None:
    """Runs the whole load."""
    tries = Tries()
    bodies = load_workload("photos-55k").read()
    with ExitStack() as stack:
        environ = {"OFFPATH_NEAR_FREE_WAIT_MS": WAIT_MS}
        cluster, url = open_cluster(stack, folder, python, environ)
        samples = Samples(cluster, tries)
        for clients, seconds in LOAD_S:
            end_s = time.monotonic() + seconds
            with watched_load(url, NAME, bodies, clients, 0.0, tries):
                while time.monotonic() < end_s:
                    time.sleep(EVERY_S)
                    samples.take(clients)
    (folder / "samples.json").write_text(json.dumps(samples.values))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
