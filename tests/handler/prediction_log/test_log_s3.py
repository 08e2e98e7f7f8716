"""Delivery to a real S3 server, and behaviour during outages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from offpath.handler.prediction_log.prediction_log import PredictionLog
from tests.guarantees import guarantee
from tests.handler.prediction_log.conftest import make_record
from tests.support.eventually import eventually
from tests.support.s3_faults import OUTAGES, PASS, UNANSWERED, FaultProxy
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.s3

OpenLog = Callable[..., PredictionLog]


@pytest.fixture
def proxy(seaweedfs: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(seaweedfs.endpoint_url) as proxy:
        yield proxy


def s3(server: S3Server | FaultProxy, **options: Any) -> dict[str, Any]:
    return {"endpoint_url": server.endpoint_url, "timeout_s": 60, **options}


def test_records_arrive_once_under_day_and_hour(
    seaweedfs: S3Server, bucket: Any, open_log: OpenLog
) -> None:
    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    records = [make_record() for _ in range(100)]
    begin_s = time.time()
    for start in range(0, 100, 8):
        log.append(records[start : start + 8])

    log.close()

    assert bucket.event_counts() == Counter(record.event_id for record in records)
    times = [time.gmtime(at_s) for at_s in (begin_s, time.time())]
    hours = [time.strftime("predictions/dt=%Y-%m-%d/hour=%H", at) for at in times]
    for key in bucket.keys():
        assert key.rpartition("/")[0] in hours
        head = bucket.client.head_object(Bucket=bucket.name, Key=key)
        assert head["ContentType"] == "application/x-ndjson"
        assert head["ContentEncoding"] == "gzip"
    counters = log.counters()
    assert (counters.shipped, counters.retries, counters.spool_bytes) == (100, 0, 0)
    assert begin_s <= counters.last_success_unix_s <= time.time()


@guarantee("S3 fails")
@pytest.mark.parametrize("outage", OUTAGES)
def test_outage_delays_no_append_and_everything_arrives_afterwards(
    proxy: FaultProxy, bucket: Any, open_log: OpenLog, caplog: pytest.LogCaptureFixture, outage: str
) -> None:
    log = open_log(uri=bucket.uri, s3=s3(proxy, timeout_s=1))
    log.append([make_record()])
    eventually(lambda: log.counters().shipped == 1)
    proxy.set_mode(outage)
    for tries in range(2):
        for _ in range(50):
            log.append([make_record()])
        eventually(lambda: log.counters().retries > tries)
    # No append has waited until its record was delivered.
    assert log.counters().shipped == 1

    proxy.set_mode(PASS)
    eventually(lambda: log.counters().shipped == 101)
    eventually(lambda: "takes records again" in caplog.messages[-1])

    assert log.counters().dropped == 0
    assert set(bucket.event_counts().values()) == {1}
    assert len(bucket.event_counts()) == 101
    # Logged once, not at each attempt. Stalled cores may cause a time-out, which is logged too.
    assert any("cannot deliver" in message for message in caplog.messages)
    assert all(one != after for one, after in pairwise(caplog.messages))


@guarantee(
    "S3 fails",
    "handler/prediction_log/sinks.py",
    "            self._is_md5 = False",
    "            self._is_md5 = self._is_md5",
)
@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ("expired credentials", "refused with ExpiredToken"),
        ("wrong clock", "set the clock"),
        ("slow upload", "no response in time"),
        ("damaged body", "BadDigest"),
        ("another region", "set prediction_log.s3.region"),
        ("no checksums", "InvalidArgument"),
    ],
)
def test_records_arrive_in_a_bucket_with_kms_after_a_wrong_answer(
    seaweedfs: S3Server,
    bucket: Any,
    open_log: OpenLog,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    advice: str,
) -> None:
    with FaultProxy(seaweedfs.endpoint_url, has_kms=True) as proxy:
        proxy.set_mode(fault)
        log = open_log(uri=bucket.uri, s3=s3(proxy))
        log.append([make_record()])
        eventually(lambda: log.counters().retries > 0)
        proxy.set_mode(PASS)
        eventually(lambda: log.counters().shipped == 1)
        log.close()
    assert advice in caplog.text
    assert set(bucket.event_counts().values()) == {1}


@guarantee("S3 fails")
@pytest.mark.parametrize(
    ("secret", "message", "advice"),
    [
        pytest.param("wrong", "refused with", "AWS_SECRET_ACCESS_KEY", id="refused"),
        pytest.param(None, "no usable AWS credentials", "blacklist_env_vars", id="missing"),
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
    eventually(lambda: log.counters().retries > 1)
    assert caplog.text.count(message) == 1
    assert advice in caplog.text
    assert log.counters().spool_bytes > 0

    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    eventually(lambda: log.counters().shipped == 1)


def test_a_worker_killed_before_the_acknowledgement_is_shipped_again_to_the_same_object(
    seaweedfs: S3Server,
    proxy: FaultProxy,
    bucket: Any,
    start_writer: Callable[..., Any],
    open_log: OpenLog,
) -> None:
    proxy.set_mode(UNANSWERED)
    writer = start_writer(uri=bucket.uri, s3=s3(proxy), segment_max_age_s=0.2)
    eventually(bucket.keys)
    writer.kill()
    stored = set(bucket.keys())

    log = open_log(uri=bucket.uri, s3=s3(seaweedfs))
    eventually(lambda: log.counters().shipped > 0 and log.counters().spool_bytes == 0)

    assert stored <= set(bucket.keys())
    counts = bucket.event_counts()
    assert set(counts.values()) == {1}
    assert set(writer.answered) <= counts.keys()
