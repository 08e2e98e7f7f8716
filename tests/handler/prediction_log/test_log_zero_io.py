"""On the request's path the log does one write to an open file, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys, threading
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
mapping = {"uri": "file://" + sys.argv[1] + "/out", "spool_dir": sys.argv[1] + "/spool",
           "segment_max_bytes": 1024, "spool_max_bytes": 1 << 30, "segment_max_age_s": 0.2}
log = open_prediction_log(PredictionLogSettings.from_mapping(mapping, {}), model="m", version="1")
now = "2026-11-21T03:51:42Z"
batches = [[Record(f"{b}-{n}", now, "m", "1") for n in range(8)] for b in range(201)]
log.append(batches.pop())
me, seen = threading.get_ident(), []
sys.addaudithook(lambda name, args: seen.append(name) if threading.get_ident() == me else None)
print("tid", threading.get_native_id(), flush=True)
os.getppid()
for batch in batches:
    log.append(batch)
os.getppid()
events = list(seen)
print("events", sorted(set(events)), flush=True)
log.close()
print("shipped", log.counters().shipped, flush=True)
"""


def run(tmp_path: Path, *before: str) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_an_append_is_one_write(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    output = run(tmp_path, "strace", "-f", "-qq", "-o", str(trace))

    thread = re.search(r"tid (\d+)", output)[1]  # type: ignore[index]
    own = [
        line.split(maxsplit=1)[1].split("(")[0]
        for line in trace.read_text().splitlines()
        if line.startswith(f"{thread} ") and " resumed>" not in line
    ]
    begin, end = (n for n, call in enumerate(own) if call == "getppid")
    # futex: the GIL and the log's lock; the others: Python's memory.
    not_io = {"futex", "mmap", "munmap", "brk", "madvise"}
    assert [call for call in own[begin + 1 : end] if call not in not_io] == ["write"] * 200
