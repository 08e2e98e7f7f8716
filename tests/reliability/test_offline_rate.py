"""The rate of `offpath batch`, beside that of decoding alone on the same cores.

python -m pytest -n0 -s -m reliability tests/reliability/test_offline_rate.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.handler.process.host_limits import count_cores
from offpath.profiling.load.core_limits import LimitMeter
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import archives

ROUNDS = 5
WINDOW_S = 10.0


# The least share of decoding alone, below what was measured: at 1.2 MB, three runs had medians of
# 0.88, 0.91 and 0.90, where 0.9 was the aim. At 55 kB the model and the handler's own work take the
# rest: 0.4 ms of 1.6 ms per image.
@pytest.mark.reliability
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workload, least", [("photos-1200k", 0.85), ("photos-55k", 0.6)])
def test_the_rate_is_near_that_of_decoding_alone(
    workload: str, least: float, tmp_path: Path
) -> None:
    model, cores = load_model("near-free"), count_cores()
    config = archives.offpath_config(model, cores)
    mar = archives.build_offpath(model, config, tmp_path)
    paths = load_workload(workload).paths
    shares, of_both = [], []
    print("\n|  | images per second | decoding alone | share of it | of decoding and the model |")
    print("|---|---|---|---|---|")
    for number in range(ROUNDS):
        with LimitMeter("near-free", cores, config["batchSize"], WINDOW_S) as meter:
            limits = (meter.measure_decode(paths), meter.measure_forward())
        decode, forward = (one["images"] / one["elapsed_s"] for one in limits)
        names = (paths * (int(decode * WINDOW_S) // len(paths) + 1))[: int(decode * 10)]
        folder = tmp_path / f"in-{number}"
        folder.mkdir()
        for count, path in enumerate(names):
            (folder / f"{count}.jpg").symlink_to(path)
        command = [sys.executable, "-m", "offpath", "batch", str(mar), str(folder)]
        output = str(tmp_path / f"out-{number}")
        done = subprocess.run([*command, output, "--json"], stdout=subprocess.PIPE)
        summary = json.loads(done.stdout)
        assert (done.returncode, summary["images"]) == (0, len(names))
        rate = summary["images_per_s"]
        shares.append(rate / decode)
        of_both.append(rate * (1 / decode + 1 / forward))
        print(
            f"| {workload} | {rate:.0f} | {decode:.0f} | {shares[-1]:.0%} | {of_both[-1]:.0%} |",
            flush=True,
        )
    assert statistics.median(shares) > least
