"""Prediction logs for the tests of `offpath logs`, written by this process and by killed ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record, format_inference_time
from tests.offpath.conftest import Done, Run

ROOT = Path(__file__).parents[2]
Logs = Callable[..., Done]
StartWorker = Callable[..., subprocess.Popen[str]]
WRITER = """
import os, signal, sys
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
mapping = {"uri": sys.argv[1], "spool_dir": sys.argv[2]}
log = open_prediction_log(PredictionLogSettings.from_mapping(mapping, {}), model="m", version="1")
log.append([Record(name, sys.argv[4], "m", "1") for name in sys.argv[3].split()])
print("written", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def logs(run: Run) -> Logs:
    """Runs `offpath logs ship ...` as `logs("ship", ...)`."""
    return lambda *arguments: run("logs", *arguments)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a process that writes records and is then stopped, so that it ships none."""
    workers = []

    def start(names: str, uri: str = "", time: str = "") -> subprocess.Popen[str]:
        arguments = [
            uri or f"file://{tmp_path}/out",
            str(tmp_path / "spool"),
            names,
            time or format_inference_time(),
        ]
        worker = subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert worker.stdout is not None and worker.stdout.readline() == "written\n"
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()


def kill(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()


def write_log(folder: Path, records: list[Record], **mapping: Any) -> str:
    """Returns the URI of a delivered log in `folder`."""
    uri = f"file://{folder}"
    values = {"uri": uri, "spool_dir": str(folder) + "-spool", **mapping}
    settings = PredictionLogSettings.from_mapping(values, {})
    log = open_prediction_log(settings, model="m", version="1")
    log.append(records)
    log.close()
    return uri


def record(event_id: str, time: str = "", **fields: Any) -> Record:
    return Record(event_id, time or format_inference_time(), "m", "1", **fields)
