"""Replicas from 1 to 3 and back, as Ray Serve scales the exported application on a cluster.

OFFPATH_RAY_JSON=replicas.json scripts/test.sh --reliability -k ray_replicas
offpath bench show replicas.json --plot replicas.svg
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.experiments.replicas_report import (
    CLIENTS,
    FAILED,
    NAME,
    RUNNING,
    WANTED,
)
from offpath.profiling.servers.confined import NAMESPACE
from tests.support.ray_application import make_application
from tests.support.ray_replicas import LOAD_S, MANY, WAIT_MS

COMMAND = "scripts/test.sh --reliability -k ray_replicas"
MOST, BATCH_SIZE = 3, 4
RESULT_VARIABLE = "OFFPATH_RAY_JSON"

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]


def test_replicas_follow_the_load_up_and_down(tmp_path: Path, ray_python: Path) -> None:
    make_application(tmp_path, BATCH_SIZE, replicas=(1, MOST))
    program = [sys.executable, "-m", "tests.support.ray_replicas"]
    subprocess.run([*NAMESPACE, *program, str(tmp_path), str(ray_python)], check=True)
    samples = json.loads((tmp_path / "samples.json").read_text())
    run = Run(
        NAME,
        COMMAND,
        {"load": [f"{clients} clients for {s:g} s" for clients, s in LOAD_S]},
        {"offpath-ray": {"batch_size": BATCH_SIZE, "forward_ms": WAIT_MS, "nodes": 3}},
        {"photos-55k": {}},
    )
    run.add(0, "offpath-ray", Cell("photos-55k", MANY), samples)
    run.save(Path(os.environ.get(RESULT_VARIABLE, tmp_path / "replicas.json")))
    counts = samples[RUNNING]
    print(f"\nrunning over time: {counts}; failed {sum(samples[FAILED]):.0f}")
    under_load = [n for n, c in zip(counts, samples[CLIENTS]) if c == MANY]
    assert (counts[0], max(under_load), counts[-1]) == (1, MOST, 1)
    assert max(samples[WANTED]) == MOST
    assert sum(samples[FAILED]) == 0
