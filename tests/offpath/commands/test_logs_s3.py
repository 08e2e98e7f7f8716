"""`offpath logs` against a real S3 server, beside living workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.profiling.servers.s3_servers import S3Server, run_seaweedfs

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[3]
WRITER = ROOT / "tests" / "handler" / "prediction_log" / "spool_writer.py"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_seaweedfs() as server:
        yield server


def run_logs(
    server: S3Server, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offpath", "logs", *arguments],
        cwd=ROOT,
        env={**os.environ, **server.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def make_uri(server: S3Server) -> str:
    bucket = f"logs-{uuid.uuid4().hex[:12]}"
    server.client().create_bucket(Bucket=bucket)
    return f"s3://{bucket}/predictions"


def start_writer(server: S3Server, uri: str, spool: Path) -> subprocess.Popen[bytes]:
    mapping = {
        "uri": uri,
        "spool_dir": str(spool),
        "segment_max_age_s": 0.2,
        "segment_max_bytes": 20_000,
        "s3": {"endpoint_url": server.endpoint_url},
    }
    return subprocess.Popen(
        [sys.executable, str(WRITER), json.dumps(mapping), "{}"],
        stdout=subprocess.PIPE,
        # Unbuffered: what readline() took ahead would be lost to communicate().
        bufsize=0,
        env={**os.environ, **server.environ, "PYTHONPATH": str(ROOT)},
    )


def test_two_workers_and_a_ship_from_outside_deliver_everything_once(
    server: S3Server, tmp_path: Path
) -> None:
    uri, spool = make_uri(server), tmp_path / "spool"
    answered: list[str] = []
    for _ in range(2):
        workers = [start_writer(server, uri, spool) for _ in range(2)]
        for worker in workers:
            assert worker.stdout is not None
            answered.append(worker.stdout.readline().decode().strip())
        # One dies; the other's shipper and two commands from outside go for what it left.
        workers[0].kill()
        ships = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "offpath",
                    "logs",
                    "ship",
                    "--spool",
                    str(spool),
                ],
                cwd=ROOT,
                env={**os.environ, **server.environ},
                stdout=subprocess.DEVNULL,
            )
            for _ in range(2)
        ]
        assert [ship.wait(60) for ship in ships] == [0, 0]
        time.sleep(0.5)
        workers[1].kill()
        for worker in workers:
            output, _ = worker.communicate()
            answered += output.decode().rpartition("\n")[0].split()
    last = run_logs(server, "ship", "--spool", str(spool), "--json")
    assert last.returncode == 0, last.stderr
    assert list(spool.glob("*/*/*")) == []

    ids = tmp_path / "ids"
    ids.write_text("\n".join(answered))
    store = ["--endpoint-url", server.endpoint_url]
    done = run_logs(server, "verify", uri, "--ids", str(ids), "--json", *store)
    verdict = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (verdict["missing"], verdict["double"]) == ([], [])
    assert verdict["asked"] == len(answered) > 100
    read = run_logs(server, "read", uri, "--since", "1h", "--json", *store)
    counts = Counter(json.loads(line)["event_id"] for line in read.stdout.splitlines())
    assert set(counts.values()) == {1}
    sets = ("--a", uri, "--b", "since=1h", "--fail-if", f"requests_b<{len(counts)}")
    report = run_logs(server, "report", *sets, "--json", *store)
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["sets"]["a"]["records"] == len(counts)


def test_wrong_credentials_leave_the_spool_alone_and_say_what_to_allow(
    server: S3Server, tmp_path: Path
) -> None:
    uri, spool = make_uri(server), tmp_path / "spool"
    worker = start_writer(server, uri, spool)
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.kill()
    worker.communicate()

    ship = ["ship", "--spool", str(spool), "--timeout-s", "1"]
    done = run_logs(server, *ship, AWS_SECRET_ACCESS_KEY="wrong")

    assert done.returncode == 1
    assert "refused with" in done.stderr and "s3:PutObject" in done.stderr
    assert run_logs(server, *ship).returncode == 0
    assert list(spool.glob("*/*/*")) == []


def test_reading_an_endpoint_that_is_not_there_is_an_expected_error(
    server: S3Server,
) -> None:
    done = run_logs(server, "read", "s3://a/b", "--endpoint-url", "http://127.0.0.1:9")

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
