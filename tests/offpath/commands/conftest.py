"""Prediction logs for the tests of `offpath logs`, written by this process and by killed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record, format_inference_time
from tests.handler.prediction_log.killed_writers import Writer
from tests.offpath.conftest import Done, Run

Logs = Callable[..., Done]
StartWorker = Callable[..., Writer]


@pytest.fixture
def logs(run: Run) -> Logs:
    """Runs `offpath logs ship ...` as `logs("ship", ...)`."""
    return lambda *arguments: run("logs", *arguments)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a process that writes records and is then stopped, so that it ships none."""
    workers = []

    def start(names: str, uri: str = f"file://{tmp_path}/out") -> Writer:
        settings = {"uri": uri, "spool_dir": str(tmp_path / "spool")}
        workers.append(Writer(settings, {"names": names.split()}))
        workers[-1].wait_until_written(len(names.split()))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


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
