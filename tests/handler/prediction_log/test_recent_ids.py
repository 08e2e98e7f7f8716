"""A request that TorchServe runs twice, on two workers, is recorded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log.prediction_log import PredictionLog
from tests.handler.prediction_log.conftest import make_record
from tests.support.bucket import read_out
from tests.support.eventually import eventually

OpenLog = Callable[..., PredictionLog]


def test_a_killed_workers_batch_that_is_run_again_is_recorded_once(
    start_writer: Callable[..., Any], open_log: OpenLog, tmp_path: Path
) -> None:
    writer = start_writer({"batch_size": 8, "pause_s": 3600}, segment_max_age_s=3600)
    writer.wait_until_written(8)
    writer.kill()
    ids = writer.answered
    log = open_log(segment_max_age_s=3600)

    log.append([make_record(event_id) for event_id in [*ids, "new"]])
    eventually(lambda: log.counters().shipped == len(ids))
    log.close()

    assert log.counters().appended == 1
    assert read_out(tmp_path / "out") == Counter([*ids, "new"])


@pytest.mark.parametrize("sync", ["os", "fsync"])
def test_dropped_record_may_be_recorded_by_another_worker_which_delivers_it_at_its_end(
    open_log: OpenLog, tmp_path: Path, sync: str
) -> None:
    first, second = (open_log(segment_max_age_s=100, sync=sync) for _ in range(2))
    first.close()
    first.append([make_record("e1")])
    assert first.counters().dropped == 1

    second.append([make_record("e1")])
    second.close()

    assert read_out(tmp_path / "out") == Counter(["e1"])
    assert second.counters().spool_bytes == 0
