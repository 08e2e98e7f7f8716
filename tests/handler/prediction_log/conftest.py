"""Logs that are closed at the end, and processes that are killed while they write one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log import prediction_log
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.prediction_log import PredictionLog, open_prediction_log
from offpath.handler.prediction_log.record import Record
from tests.handler.prediction_log.killed_writers import Writer, run_writers
from tests.support.bucket import read_out


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., PredictionLogSettings]:
    """Settings with short-lived segments and a separate spool for the test."""

    def make(**mapping: Any) -> PredictionLogSettings:
        defaults = {
            "uri": f"file://{tmp_path}/out",
            "spool_dir": str(tmp_path / "spool"),
            "segment_max_age_s": 0.3,
            "retry_max_s": 0.5,
        }
        return PredictionLogSettings.from_mapping({**defaults, **mapping}, {})

    return make


@pytest.fixture
def open_log(
    make_settings: Callable[..., PredictionLogSettings], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PredictionLog]]:
    """Opens logs that are closed at the end of the test, and deliver then all that they can."""
    logs: list[PredictionLog] = []
    monkeypatch.setattr(prediction_log, "CLOSE_TIMEOUT_S", 120.0)

    def open_one(**mapping: Any) -> PredictionLog:
        log = open_prediction_log(make_settings(**mapping), model="m", version="1.0")
        logs.append(log)
        return log

    yield open_one
    for log in logs:
        log.close()


@pytest.fixture
def start_writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    """Starts writers whose ledger is checked at the end: with the bucket, if there is one."""
    settings = {"spool_dir": f"{tmp_path}/spool", "uri": f"file://{tmp_path}/out"}
    count = partial(read_out, tmp_path / "out")
    if "bucket" in request.fixturenames:
        count = request.getfixturevalue("bucket").event_counts
    with run_writers(settings, count) as start:
        yield start


def make_record(event_id: str = "", **fields: Any) -> Record:
    return Record(
        event_id=event_id or uuid.uuid4().hex,
        inference_time="2026-11-21T03:51:42.123Z",
        model="m",
        version="1.0",
        **fields,
    )
