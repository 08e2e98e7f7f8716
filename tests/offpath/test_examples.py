"""Each example in examples/ runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record

EXAMPLES = Path(__file__).parents[2] / "examples"
LOG = EXAMPLES / "prediction-log"
# Parts of what an example prints; those without a line classify photographs and a damaged file.
EXPECTED = {
    "defects": ['"defects":["hole","scratch"]', "UndecodableImage"],
    "migration": ["requests per second", "torchserve-stock"],
}


def test_the_report_counts_labels_and_errors_of_a_prediction_log(tmp_path: Path) -> None:
    mapping = {"uri": f"file://{tmp_path}/log", "spool_dir": f"{tmp_path}/spool"}
    settings = PredictionLogSettings.from_mapping(mapping, {})
    log = open_prediction_log(settings, model="m", version="1")
    times = {"decode": 1.5, "inference": 2.5}
    good = {"predictions": [("cat", 0.75), ("dog", 0.25)], "stage_ms": times}
    bad = {"status": 422, "error": "UndecodableImage", "stage_ms": times}
    when = "2026-11-22T00:00:00.000Z"
    log.append([Record(str(n), when, "m", "1", **good) for n in range(3)])
    log.append([Record("bad", when, "m", "1", **bad)])
    log.close()
    done = subprocess.run(
        [sys.executable, LOG / "report.py", tmp_path / "log"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "│" in line]
    assert ["│", "cat", "│", "3", "│", "0.75", "│"] in rows
    assert ["│", "422", "│", "UndecodableImage", "│", "1", "│"] in rows
    assert ["│", "3", "│", "1.0", "│", "1.5", "│", "2.5", "│"] in rows


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    "script", sorted(EXAMPLES.glob("*/run.sh")), ids=lambda path: path.parent.name
)
def test_an_example_runs_with_one_command(script: Path) -> None:
    done = subprocess.run([script], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = EXPECTED.get(script.parent.name, ["espresso", "UndecodableImage"])
    assert all(part in done.stdout for part in expected)
