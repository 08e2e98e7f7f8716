"""Runs the long tests only if their marker is selected; the trials of the log that they share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from offpath.handler.process.host_limits import count_cores
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers import archives
from tests.support.bucket import Bucket
from tests.support.front import Seen, load
from tests.support.s3_faults import FaultProxy
from tests.support.s3_servers import S3Server, run_seaweedfs

MARK = "reliability"
WORKERS = min(count_cores(), 4)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the long tests in runs that select by other markers, such as `-m "not slow"`."""
    if MARK in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(MARK)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def load_for(url: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Seen:
    """Returns the results of some seconds of load."""
    with load(url, bodies, clients) as seen:
        time.sleep(seconds)
    return seen


@dataclass(frozen=True)
class LogTrial:
    """A bucket, and the archive whose records go there through the proxy."""

    s3: S3Server
    proxy: FaultProxy
    bucket: Bucket
    archive: Path
    spool: Path

    def ship(self) -> None:
        """Runs `offpath logs ship` in its own process, as an operator would."""
        command = [sys.executable, "-m", "offpath", "logs", "ship", "--spool"]
        done = subprocess.run(
            [*command, str(self.spool)],
            env={**os.environ, **self.s3.environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[LogTrial]:
    """Runs a trial with the near-free model and short segments."""
    with run_seaweedfs() as s3, FaultProxy(s3.endpoint_url) as proxy:
        bucket = Bucket(s3)
        model = load_model("near-free")
        log = {
            "uri": bucket.uri,
            "segment_max_age_s": 2,
            "retry_max_s": 5,
            "s3": {"endpoint_url": proxy.endpoint_url, "region": "us-east-1", "timeout_s": 10},
        }
        config = archives.offpath_config(model, WORKERS, prediction_log=log)
        (tmp_path / "store").mkdir()
        archive = archives.build_offpath(model, config, tmp_path / "store")
        yield LogTrial(s3, proxy, bucket, archive, tmp_path / "spool")
