"""`offpath logs` against a real S3 server, beside living workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from offpath.handler.prediction_log.packing import compress
from tests.handler.prediction_log.killed_writers import run_writers
from tests.offpath.commands.test_logs_poisoned import LONG_LINE, RECORD
from tests.offpath.conftest import Done, Run
from tests.support.bucket import Bucket
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[3]


def start_logs(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "offpath", "logs", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_logs(*arguments: str, **environ: str) -> Done:
    process = start_logs(*arguments, **environ)
    output = process.communicate()
    return Done(process.returncode, *output)


def test_two_workers_and_a_ship_from_outside_deliver_everything_once(
    seaweedfs: S3Server, bucket: Bucket, tmp_path: Path
) -> None:
    uri, spool = bucket.uri, tmp_path / "spool"
    settings = {"uri": uri, "spool_dir": str(spool), "segment_max_bytes": 20_000}
    settings |= {"s3": {"endpoint_url": seaweedfs.endpoint_url}, "segment_max_age_s": 0.2}
    answered: list[str] = []
    with run_writers(settings, bucket.event_counts) as start_writer:
        for _ in range(2):
            first, second = start_writer(), start_writer()
            first.wait_until_written()
            second.wait_until_written()
            # One dies; the other's shipper and two commands from outside go for what it left.
            first.kill()
            ships = [start_logs("ship", "--spool", str(spool)) for _ in range(2)]
            errors = [ship.communicate()[1] for ship in ships]
            assert [ship.returncode for ship in ships] == [0, 0], errors
            second.wait_until_written(len(second.answered) + 100)
            second.kill()
            answered += first.answered + second.answered
    last = run_logs("ship", "--spool", str(spool), "--json")
    assert last.code == 0, last.err
    assert list(spool.glob("*/*/*")) == []

    ids = tmp_path / "ids"
    ids.write_text("\n".join(answered))
    store = {"AWS_ENDPOINT_URL_S3": seaweedfs.endpoint_url}
    done = run_logs("verify", uri, "--ids", str(ids), "--json", **store)
    verdict = json.loads(done.out)
    assert done.code == 0, done.err
    assert (verdict["missing"], verdict["double"]) == ([], [])
    assert verdict["asked"] == len(answered)
    wrong = run_logs("read", uri, AWS_SECRET_ACCESS_KEY="wrong", **store)
    assert wrong.code == 1 and "AWS_SECRET_ACCESS_KEY" in wrong.err
    assert "PutObject" not in wrong.err
    elsewhere = run_logs("read", f"{uri}-misspelt", "--since", "1h", **store)
    assert elsewhere.code == 2 and "there is no prediction log at" in elsewhere.err
    read = run_logs("read", uri, "--since", "1h", "--json", **store)
    counts = Counter(json.loads(line)["event_id"] for line in read.out.splitlines())
    assert set(counts.values()) == {1}
    sets = ("--a", uri, "--b", "since=1h")
    report = run_logs("report", *sets, "--json", **store)
    assert report.code == 0, report.err
    assert json.loads(report.out)["figures"]["requests_a"] == len(counts)


def test_a_poisoned_bucket_is_read_but_for_its_bombs(
    seaweedfs: S3Server, bucket: Bucket, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.endpoint_url)
    poisoned = RECORD.replace(b'"x"', rb'"cat\ud800"')
    for name, content in {"1": poisoned, "2": LONG_LINE, "3": RECORD}.items():
        key = f"predictions/dt=2026-11-21/hour=03/{name}.jsonl.gz"
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=compress(content))

    done = run("logs", "read", bucket.uri)

    assert done.code == 1 and "1 objects" in done.err and "/2.jsonl.gz" in done.err
    assert r"cat\ud800" in done.out and " x " in done.out
