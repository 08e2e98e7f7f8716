"""Real processes, real SIGKILL: what was appended is in the bucket exactly once."""

from __future__ import annotations

import glob
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log.prediction_log import PredictionLog
from tests.guarantees import guarantee
from tests.support.eventually import eventually
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.s3

ROUNDS = int(os.environ.get("OFFPATH_TEST_KILL_ROUNDS", "4"))


@guarantee(
    "A worker is killed",
    "handler/prediction_log/delivery.py",
    "                await self._sink.put(segment.name.key, body)",
    (
        "                for key in (segment.name.key, segment.name.key + '2'):\n"
        "                    await self._sink.put(key, body)"
    ),
)
def test_records_of_killed_workers_are_in_the_bucket_exactly_once(
    seaweedfs: S3Server,
    bucket: Any,
    start_writer: Callable[..., Any],
    open_log: Callable[..., PredictionLog],
    tmp_path: Path,
) -> None:
    seed = os.environ.get("OFFPATH_TEST_SEED") or str(random.randrange(1 << 30))
    print(f"OFFPATH_TEST_SEED={seed}")
    chance = random.Random(seed)
    mapping = {
        "uri": bucket.uri,
        "s3": {"endpoint_url": seaweedfs.endpoint_url},
        "segment_max_age_s": 0.2,
        "segment_max_bytes": 20_000,
    }
    for _ in range(ROUNDS):
        # Each writer ships its own records and adopts segments of the round before.
        pair = [start_writer(**mapping) for _ in range(2)]
        for writer in pair:
            writer.wait_until_written(chance.randrange(1, 1500))
        for writer in pair:
            writer.kill()
    log = open_log(**mapping)
    # Then `start_writer` finds every record in the bucket, or it is lost.
    # Not Path.glob, which fails where a folder goes while it looks.
    eventually(lambda: len(glob.glob(f"{tmp_path}/spool/*/*/*.spool")) <= 1)
    eventually(lambda: log.counters().spool_bytes == 0)
