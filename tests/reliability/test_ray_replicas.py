"""Replicas from 1 to 3 and back, as Ray Serve scales the exported application on a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.profiling.servers.confined import NAMESPACE
from tests.support.ray_application import make_application
from tests.support.ray_replicas import CLIENTS, FAILED, MANY, RUNNING, WANTED

MOST, BATCH_SIZE = 3, 4

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]


def test_replicas_follow_the_load_up_and_down(tmp_path: Path, ray_python: Path) -> None:
    make_application(tmp_path, BATCH_SIZE, replicas=(1, MOST))
    program = [sys.executable, "-m", "tests.support.ray_replicas"]
    subprocess.run([*NAMESPACE, *program, str(tmp_path), str(ray_python)], check=True)
    samples = json.loads((tmp_path / "samples.json").read_text())
    counts = samples[RUNNING]
    print(f"\nrunning over time: {counts}; failed {sum(samples[FAILED]):.0f}")
    under_load = [n for n, c in zip(counts, samples[CLIENTS]) if c == MANY]
    assert (counts[0], max(under_load), counts[-1]) == (1, MOST, 1)
    assert max(samples[WANTED]) == MOST
    assert sum(samples[FAILED]) == 0
