"""Delivery to a real S3 server, and behaviour during outages."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest

from offpath.handler.prediction_log import PredictionLog
from offpath.profiling.servers.s3_servers import S3Server
from tests.handler.prediction_log.conftest import make_record, wait_until
from tests.support.s3_faults import (
    DENIED,
    HANGING,
    OUTAGES,
    PASS,
    REFUSED,
    FaultProxy,
)

pytestmark = pytest.mark.s3

OpenLog = Callable[..., PredictionLog]


@pytest.fixture
def proxy(seaweedfs: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(seaweedfs.endpoint_url) as proxy:
        yield proxy


def s3(server: S3Server | FaultProxy, **options: Any) -> dict[str, Any]:
    return {"endpoint_url": server.endpoint_url, "timeout_s": 1, **options}


def test_records_arrive_once_under_day_and_hour(
    seaweedfs: S3Server, bucket: Any, open_log: OpenLog
) -> None:
    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    records = [make_record() for _ in range(100)]
    for start in range(0, 100, 8):
        log.append(records[start : start + 8])

    log.close()

    assert bucket.event_counts() == Counter(record.event_id for record in records)
    (key,) = bucket.keys()
    day, hour = time.strftime("%Y-%m-%d %H", time.gmtime()).split()
    assert key.startswith(f"predictions/dt={day}/hour={hour}/")
    head = bucket.client.head_object(Bucket=bucket.name, Key=key)
    assert head["ContentType"] == "application/x-ndjson"
    assert head["ContentEncoding"] == "gzip"
    counters = log.counters()
    assert (counters.shipped, counters.retries, counters.spool_bytes) == (100, 0, 0)
    assert abs(counters.last_success_unix_s - time.time()) < 60


@pytest.mark.parametrize("outage", OUTAGES)
def test_outage_delays_no_append_and_everything_arrives_afterwards(
    proxy: FaultProxy,
    bucket: Any,
    open_log: OpenLog,
    caplog: pytest.LogCaptureFixture,
    outage: str,
) -> None:
    log = open_log(uri=bucket.uri, s3=s3(proxy))
    log.append([make_record()])
    wait_until(lambda: log.counters().shipped == 1)
    proxy.set_mode(outage)
    slowest_s = 0.0
    for _ in range(150):
        begin_s = time.perf_counter()
        log.append([make_record()])
        slowest_s = max(slowest_s, time.perf_counter() - begin_s)
        time.sleep(0.01)
    wait_until(lambda: log.counters().retries > 1)
    assert log.counters().shipped == 1

    proxy.set_mode(PASS)
    wait_until(lambda: log.counters().shipped == 151)

    assert slowest_s < 0.5
    assert log.counters().dropped == 0
    assert set(bucket.event_counts().values()) == {1}
    assert len(bucket.event_counts()) == 151
    # Logged once, not at each attempt. Stalled cores may cause a time-out, which is logged too.
    messages = [record.getMessage() for record in caplog.records]
    assert any("cannot deliver" in message for message in messages)
    assert all(one != after for one, after in pairwise(messages))
    assert "takes records again" in messages[-1]


@pytest.mark.parametrize(
    ("secret", "message", "advice"),
    [
        pytest.param("wrong", "refused with", "s3:PutObject", id="refused"),
        pytest.param(
            None, "no usable AWS credentials", "blacklist_env_vars", id="missing"
        ),
    ],
)
def test_bad_credentials_are_logged_once_and_read_again(
    seaweedfs: S3Server,
    bucket: Any,
    open_log: OpenLog,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    secret: str | None,
    message: str,
    advice: str,
) -> None:
    if secret is None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    log.append([make_record()])
    wait_until(lambda: log.counters().retries > 2)
    assert caplog.text.count(message) == 1
    assert advice in caplog.text
    assert log.counters().spool_bytes > 0

    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    wait_until(lambda: log.counters().shipped == 1)


def test_a_missing_bucket_is_named(
    moto_server: S3Server,
    aws_environ: dict[str, str],
    open_log: OpenLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = open_log(uri="s3://never-made/x", s3=s3(moto_server))
    log.append([make_record()])

    wait_until(lambda: "the bucket of s3://never-made/x does not exist" in caplog.text)
    assert log.counters().shipped == 0
    assert log.counters().spool_bytes > 0


def test_storage_class_and_kms_key_are_asked_for(
    moto_server: S3Server, aws_environ: dict[str, str], open_log: OpenLog
) -> None:
    client = moto_server.client()
    client.create_bucket(Bucket="kms")
    options = {"storage_class": "STANDARD_IA", "sse_kms_key_id": "alias/log"}
    log = open_log(uri="s3://kms", s3=s3(moto_server, **options))
    log.append([make_record()])
    wait_until(lambda: log.counters().shipped == 1)
    log.close()

    (row,) = client.list_objects_v2(Bucket="kms")["Contents"]
    head = client.head_object(Bucket="kms", Key=row["Key"])
    assert row["Key"].startswith("dt=")
    assert head["StorageClass"] == "STANDARD_IA"
    assert head["ServerSideEncryption"] == "aws:kms"
    assert head["SSEKMSKeyId"].endswith("alias/log")


def test_a_full_spool_in_an_outage_drops_the_oldest_and_ships_the_rest(
    proxy: FaultProxy, bucket: Any, open_log: OpenLog
) -> None:
    proxy.set_mode(HANGING)
    bound = {"segment_max_bytes": 4096, "spool_max_bytes": 16384}
    log = open_log(uri=bucket.uri, s3=s3(proxy), **bound)
    for _ in range(200):
        log.append([make_record()])
        time.sleep(0.01)
    proxy.set_mode(PASS)
    wait_until(lambda: log.counters().spool_bytes == 0)

    counters = log.counters()
    assert counters.dropped > 0
    assert counters.shipped + counters.dropped == 200
    assert len(bucket.event_counts()) == counters.shipped
    assert set(bucket.event_counts().values()) == {1}


def test_a_full_spool_in_an_outage_holds_back_under_block_and_loses_nothing(
    proxy: FaultProxy, bucket: Any, open_log: OpenLog
) -> None:
    proxy.set_mode(REFUSED)
    bound = {"segment_max_bytes": 4096, "spool_max_bytes": 16384}
    log = open_log(uri=bucket.uri, s3=s3(proxy), when_full="block", **bound)

    def append_all() -> None:
        for _ in range(200):
            log.append([make_record()])

    appender = threading.Thread(target=append_all)
    appender.start()
    wait_until(lambda: log.counters().spool_bytes > 16000)
    assert appender.is_alive()
    assert log.counters().spool_bytes <= bound["spool_max_bytes"]
    proxy.set_mode(PASS)
    appender.join(timeout=30)
    wait_until(lambda: log.counters().shipped == 200)

    assert log.counters().dropped == 0
    assert Counter(bucket.event_counts().values()) == {1: 200}


def test_duckdb_reads_the_objects_as_the_documentation_says(
    seaweedfs: S3Server, bucket: Any, open_log: OpenLog, tmp_path: Path
) -> None:
    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    log.append(
        [
            make_record(
                "e1", predictions=[("cup", 0.9), ("mug", 0.1)], stage_ms={"decode": 2.5}
            ),
            make_record("e2", predictions=[("mug", 0.8)], stage_ms={"decode": 3.5}),
            make_record("e3", status=422, error="not_an_image"),
        ]
    )
    wait_until(lambda: log.counters().shipped == 3)
    log.close()
    # DuckDB would download an extension to read S3, so it reads the same objects as files.
    for key in bucket.keys():
        path = tmp_path / "bucket" / key
        path.parent.mkdir(parents=True)
        bucket.client.download_file(bucket.name, key, str(path))
    query = (Path(__file__).parents[3] / "docs" / "prediction-log.md").read_text()
    query = query.split("```sql\n-- DuckDB")[1].split("```")[0].split("\n", 1)[1]
    query = query.replace("s3://bucket/predictions", f"{tmp_path}/bucket/predictions")
    day = time.strftime("%Y-%m-%d", time.gmtime())

    rows = duckdb.sql(query.replace("2026-11-21", day)).fetchall()

    assert sorted(row[:2] for row in rows) == [("cup", 1), ("mug", 1)]


def test_a_worker_killed_before_the_acknowledgement_is_shipped_again_to_the_same_object(
    seaweedfs: S3Server,
    bucket: Any,
    start_writer: Callable[..., Any],
    open_log: OpenLog,
) -> None:
    # The response arrives three seconds after the object is stored, when the worker is dead.
    with FaultProxy(seaweedfs.endpoint_url, latency_s=3) as slow:
        settings = {"uri": bucket.uri, "segment_max_age_s": 0.2}
        options = {"endpoint_url": slow.endpoint_url, "timeout_s": 60}
        writer = start_writer(mapping={**settings, "s3": options})
        answered = [writer.wait_until_writing()]
        wait_until(lambda: len(bucket.keys()) > 0)
        answered += writer.kill()
    stored = set(bucket.keys())

    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    wait_until(lambda: log.counters().shipped > 0 and log.counters().spool_bytes == 0)

    assert stored <= set(bucket.keys())
    counts = bucket.event_counts()
    assert set(counts.values()) == {1}
    assert set(answered) <= counts.keys()


def test_denied_uploads_say_what_to_allow_in_the_spools_status(
    proxy: FaultProxy, bucket: Any, open_log: OpenLog, tmp_path: Path
) -> None:
    proxy.set_mode(DENIED)
    log = open_log(uri=bucket.uri, s3=s3(proxy))
    log.append([make_record()])

    wait_until(lambda: any(tmp_path.glob("spool/*/last-error.json")))
    (path,) = tmp_path.glob("spool/*/last-error.json")
    assert "allow s3:PutObject" in json.loads(path.read_text())["message"]

    proxy.set_mode(PASS)
    wait_until(lambda: not path.exists())
    shutil.rmtree(tmp_path / "spool", ignore_errors=True)
