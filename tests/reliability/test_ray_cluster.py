"""A Ray cluster of three nodes under load, one killed and another drained in each round.

    scripts/test.sh --reliability -k ray_cluster

Skipped if Ray is not set up (`offpath bench setup offpath-ray`) or namespaces are not permitted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from offpath.deploy.ray.export import export_ray
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers import archives
from offpath.profiling.servers.confined import NAMESPACE
from tests.support.bucket import read_out
from tests.support.ray_rounds import CPUS, KILLED, REPLICAS, Event
from tests.support.watched_load import Tries, Try

ROUNDS = int(os.environ.get("OFFPATH_RAY_ROUNDS", "10"))
BATCH_SIZE = 8

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(120 * ROUNDS + 600)]


def make_application(folder: Path, batch_size: int, replicas: tuple[int, int]) -> None:
    """Exports FOLDER/application, which logs to FOLDER/log.

    Args:
        replicas: lowest and highest number of replicas.
    """
    model = load_model("near-free")
    log = {"uri": f"file://{folder / 'log'}", "segment_max_age_s": 2}
    config = archives.offpath_config(model, 1, prediction_log=log)
    (folder / "store").mkdir()
    config = {**config, "batchSize": batch_size}
    archive = archives.build_offpath(model, config, folder / "store")
    # The balancer runs on another node.
    application = folder / "application"
    export_ray(archive, application, replicas, host="0.0.0.0")


def ship(spool: Path) -> None:
    """Runs `offpath logs ship`, as an operator would on a node's volume."""
    command = [sys.executable, "-m", "offpath", "logs", "ship", "--spool", str(spool)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_killed_node_fails_what_is_in_flight_and_a_drained_one_nothing(
    tmp_path: Path, ray_python: Path
) -> None:
    make_application(tmp_path, BATCH_SIZE, (REPLICAS, REPLICAS))
    program = [sys.executable, "-m", "tests.support.ray_rounds"]
    arguments = [str(tmp_path), str(ROUNDS), str(ray_python)]
    subprocess.run([*NAMESPACE, *program, *arguments], check=True)
    found = json.loads((tmp_path / "rounds.json").read_text())
    tries = msgspec.convert(found["tries"], Tries)
    events = msgspec.convert(found["events"], list[Event])
    kills = [event for event in events if event.kind == KILLED]
    left = count_records(tmp_path)
    for node in CPUS:
        ship(tmp_path / node / "spool")
    answered = {one.request_id for one in tries.made if one.status == 200}
    records = count_records(tmp_path)
    lost = answered - records.keys()
    double = {one for one in answered if records[one] > 1}
    print(
        f"\n{len(answered):,} requests answered, {len(answered - left.keys()):,} of them in the log"
        f" only after `logs ship`; {len(lost)} lost, {len(double)} double;"
        f" {tries.given_up} given up by clients that retry; {len(tries.failed())} tries failed:"
        f" {dict(Counter(one.status for one in tries.failed()))}"
    )
    assert (lost, double, tries.given_up) == (set(), set(), 0)
    assert [one for one in tries.failed() if not was_cut_off(one, kills)] == []
    assert len(answered) > 50 * ROUNDS


def was_cut_off(one: Try, kills: Sequence[Event]) -> bool:
    """Returns whether the request was in flight when a node was killed."""
    return any(one.began_s <= kill.over_s and kill.done_s <= one.ended_s for kill in kills)


def count_records(folder: Path) -> Counter[str]:
    """Counts each request's records; an event id is the reply's id and a suffix."""
    counts: Counter[str] = Counter()
    for event_id, count in read_out(folder / "log").items():
        counts[event_id.rpartition(".")[0]] += count
    return counts
