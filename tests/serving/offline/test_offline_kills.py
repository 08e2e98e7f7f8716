"""`offpath batch` on a real S3 server, killed at random times."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import psutil
import pytest

from offpath.serving.process.processes import is_running
from tests.support.bucket import Bucket
from tests.support.eventually import eventually
from tests.support.images import jpeg
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(1800)]
ROUNDS = 10
IMAGES = 1500


@pytest.fixture(scope="module")
def bucket(seaweedfs: S3Server) -> Bucket:
    """Returns a bucket with images below in/, one of them damaged."""
    bucket = Bucket(seaweedfs)
    bodies = [jpeg(size=(640, 480)), jpeg("chelsea", (900, 700))]

    def put(number: int) -> None:
        body = b"no image" if number == 700 else bodies[number % 2]
        key = f"in/{number % 7}/{number} ?#ä.jpg"
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(IMAGES)))
    return bucket


def start(server: S3Server, *arguments: str) -> psutil.Popen:
    return psutil.Popen(
        [sys.executable, "-m", "offpath", "batch", *arguments],
        env={**os.environ, **server.environ, "AWS_ENDPOINT_URL": server.endpoint_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def count_parts(bucket: Bucket, output: str) -> int:
    """Counts the parts that are stored."""
    prefix = output.partition(f"{bucket.name}/")[2] + "/part-"
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix)
    return int(listed["KeyCount"])


def test_ten_kills_lose_and_double_no_image(
    seaweedfs: S3Server, bucket: Bucket, model_store: Path, tmp_path: Path
) -> None:
    seed = os.environ.get("OFFPATH_TEST_SEED") or str(random.randrange(1 << 30))
    print(f"OFFPATH_TEST_SEED={seed}")
    chance = random.Random(seed)
    outputs = [f"s3://{bucket.name}/out-0"]
    found: Counter[str] = Counter()

    def run(output: str) -> psutil.Popen:
        place = (str(model_store / "near-free.mar"), f"s3://{bucket.name}/in", output)
        return start(seaweedfs, *place, "--json", "--max-errors", "1")

    for _ in range(ROUNDS):
        process = run(outputs[-1])
        # Some kills come while the model is loaded, the others after some parts.
        wanted = count_parts(bucket, outputs[-1]) + chance.randrange(6)
        eventually(lambda: process.poll() is not None or count_parts(bucket, outputs[-1]) >= wanted)
        time.sleep(chance.uniform(0, 1))  # A part may be half written.
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()
            outputs.append(f"s3://{bucket.name}/out-{len(outputs)}")
            found["finished"] += 1
            continue
        family = [process, *process.children(recursive=True)]
        # All of them as at the loss of a machine, or the command alone.
        kind = chance.choice(("all", "command"))
        for one in family if kind == "all" else family[:1]:
            if one.is_running():
                os.kill(one.pid, signal.SIGKILL)
        process.wait()
        found[kind] += 1
        eventually(lambda: not any(map(is_running, family)))
    print(f"{dict(found)} on {len(outputs)} outputs")
    for output in outputs:
        process = run(output)
        out, err = process.communicate()
        assert process.returncode == 0, err
        summary = json.loads(out)
        print(summary)
        assert (summary["images"], summary["failed"]) == (IMAGES, 1)
        compare(bucket, output, tmp_path / output.rpartition("/")[2])


def compare(bucket: Bucket, output: str, folder: Path) -> None:
    """Asserts that each image of the bucket has one row below OUTPUT."""
    folder.mkdir()
    prefix = output.rpartition("/")[2] + "/"
    for key in bucket.keys():
        if key.startswith(f"{prefix}part-"):
            path = str(folder / key.rpartition("/")[2])
            bucket.client.download_file(bucket.name, key, path)
    rows = duckdb.read_json(f"{folder}/*.jsonl")
    counts = Counter(name for (name,) in rows.project("input").fetchall())
    asked = {f"s3://{bucket.name}/{k}" for k in bucket.keys() if k.startswith("in/")}
    assert counts == dict.fromkeys(asked, 1) and len(asked) == IMAGES
    assert rows.filter("status <> 200").project("error").fetchall() == [("UnsupportedFormat",)]
