"""The stand-in for S3 takes a put and answers after a while."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from offpath.handler.prediction_log.log_settings import S3Options
from offpath.handler.prediction_log.sinks import S3Sink
from offpath.profiling.servers.put_store import BUCKET, run_put_store


def test_a_put_is_proved_after_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put_twice() -> float:
        sink = S3Sink(f"s3://{BUCKET}/p", S3Options(region="us-east-1"))
        # Raises where the answer does not prove that the body was received.
        await sink.put("warm.jsonl.gz", b"1", "gzip")
        begin_s = time.perf_counter()
        await sink.put("a.jsonl.gz", b"a record", "gzip")
        await sink.close()
        return time.perf_counter() - begin_s

    with run_put_store(200) as beside:
        for name, value in beside.env.items():
            monkeypatch.setenv(name, value)
        assert asyncio.run(put_twice()) >= 0.2
        (pid,) = beside.pids
    assert not psutil.pid_exists(pid)
