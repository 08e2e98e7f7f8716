"""Faults one after the other under load at the front door: which requests fail, what is lost."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from offpath.profiling.servers import archives
from tests.reliability.fault_bench import (
    STAGE_S,
    Bench,
    open_bench,
    run_stage,
    statuses_of,
)
from tests.reliability.logged_server import LogTrial
from tests.reliability.strikes import COSTLY, FORK_SERVER, KILLS, UNNOTICED, Strike
from tests.support.eventually import eventually
from tests.support.front import is_alive
from tests.support.granian import FRONTS

# Run only the faults whose names contain this text.
CHOSEN = os.environ.get("OFFPATH_FAULTS", "")
pytestmark = [
    pytest.mark.reliability,
    pytest.mark.timeout(1200),
    pytest.mark.parametrize("product", FRONTS),
]


def test_faults_under_load(trial: LogTrial, tmp_path: Path, product: str) -> None:
    # Granian's workers are forked by its supervisor.
    left_out = {"granian": FORK_SERVER}.get(product)
    with open_bench(trial, tmp_path, product) as bench:
        for name, strike in (UNNOTICED | KILLS | COSTLY).items():
            if CHOSEN in name and name != left_out:
                run_stage(bench, name, strike, is_kill=name in KILLS)
        logs = (tmp_path / "logs").rglob(f"{product}.log")
        log = "".join(path.read_text(errors="replace") for path in logs)
        bench.door.terminate()
        trial.ship()
    lost, double = bench.judge()
    stages = {stage.name: stage for stage in bench.stages}
    assert [n for n in stages if n in UNNOTICED and stages[n].is_noticed] == []
    # Only the full-disk policy may drop records, and it must report them.
    assert (lost, double) == ({}, [])
    given_up = {name for name, one in stages.items() if one.given_up}
    assert given_up <= {"disk full: spool"}
    assert not given_up or "make room there" in log
    assert all(statuses_of(stages[name])[200] for name in stages)


def test_faults_a_clock_that_jumps(trial: LogTrial, tmp_path: Path, product: str) -> None:
    """Shifts the clock of the server, its workers and the shipper; S3's and nginx's stay.

    nginx is a static program, which preloads nothing. So the requests have no deadline, for which
    workers compare their clock with nginx's; test_deadline.py moves both.
    """
    shift = tmp_path / "shift"

    def jump(hours: int) -> Strike:
        def strike(bench: Bench) -> None:
            # Written in place, because the file is mapped.
            with open(shift, "r+b") as file:
                file.write(struct.pack("=q", 3600 * hours))
            time.sleep(STAGE_S)

        return strike

    shift.write_bytes(bytes(8))
    variables = shifted_clock(tmp_path, shift)
    with open_bench(trial, tmp_path, product, **variables) as bench:
        for hours in (3, 0, -3, 0, 24 * 400, 0):
            run_stage(bench, f"clock set to {hours:+d} h", jump(hours))
        bench.door.terminate()
        trial.ship()
    lost, double = bench.judge()
    hours_seen = {record["inference_time"][:13] for record in trial.bucket.records()}
    print(f"hours of the records: {sorted(hours_seen)}")
    assert len(hours_seen) > 3, "the clock did not jump"
    assert [stage.name for stage in bench.stages if stage.is_noticed] == []
    assert (lost, double) == ({}, [])


def shifted_clock(folder: Path, shift: Path) -> dict[str, str]:
    """Returns an environment that shifts the wall clock by the seconds in a file."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for tests/support/shifted_clock.c")
    source = Path(__file__).parents[1] / "support" / "shifted_clock.c"
    library = folder / "shifted_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "OFFPATH_TEST_CLOCK": str(shift)}


def test_faults_sigkill_of_serve_leaves_no_process(trial: LogTrial, product: str) -> None:
    """Checks the direct door: the server and its workers end with `offpath serve`."""
    command = ["-m", "offpath", "serve", archives.NAME, "--json", "--port", "0"]
    command += ["--metrics-port", "0", "--server", product, "--no-front"]
    command += ["--model-store", str(trial.archive.parent)]
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        env={**os.environ, "OFFPATH_PREDICTION_LOG": "off"},
    ) as serve:
        assert serve.stdout is not None and serve.stdout.readline()
        left = [p.pid for p in psutil.Process(serve.pid).children(recursive=True)]
        serve.send_signal(signal.SIGKILL)
        start_s = time.monotonic()
    eventually(lambda: not any(map(is_alive, left)), 30)
    print(f"\n{len(left)} processes gone {time.monotonic() - start_s:.1f} s after SIGKILL")
    assert len(left) > 2
