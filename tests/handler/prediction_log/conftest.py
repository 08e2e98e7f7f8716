"""Real S3 servers, real writer processes to kill, and a small real disk to fill up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log import PredictionLog, Record, open_prediction_log
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.profiling.servers.s3_servers import S3Server, run_seaweedfs
from tests.support.bucket import Bucket
from tests.support.moto_server import run_moto

WRITER = Path(__file__).with_name("spool_writer.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with run_seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with run_moto() as server:
        yield server


@pytest.fixture
def aws_environ(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Credentials for SeaweedFS, in this process and in its child processes."""
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    return dict(seaweedfs.environ)


@pytest.fixture
def bucket(seaweedfs: S3Server, aws_environ: dict[str, str]) -> Bucket:
    return Bucket(seaweedfs)


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
    make_settings: Callable[..., PredictionLogSettings],
) -> Iterator[Callable[..., PredictionLog]]:
    """Opens logs that are closed at the end of the test."""
    logs: list[PredictionLog] = []

    def open_one(**mapping: Any) -> PredictionLog:
        log = open_prediction_log(make_settings(**mapping), model="m", version="1.0")
        logs.append(log)
        return log

    yield open_one
    for log in logs:
        log.close()


def make_record(event_id: str = "", **fields: Any) -> Record:
    return Record(
        event_id=event_id or uuid.uuid4().hex,
        inference_time="2026-11-21T03:51:42.123Z",
        model="m",
        version="1.0",
        **fields,
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s} s")
        time.sleep(0.05)


class Writer:
    """A process that appends records and prints their ids until it is killed."""

    def __init__(self, mapping: dict[str, Any], options: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WRITER), json.dumps(mapping), json.dumps(options)],
            stdout=subprocess.PIPE,
            # Unbuffered, because communicate() would lose what readline() has read ahead.
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.pid = self._process.pid

    def wait_until_writing(self) -> str:
        """Returns the first event id, when the log is open and has a record."""
        return self._process.stdout.readline().decode().strip()  # type: ignore[union-attr]

    def kill(self) -> list[str]:
        """Kills the process; returns the ids whose append had returned, except the first."""
        self._process.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> list[str]:
        output, _ = self._process.communicate(timeout=60)
        # The last line may be torn as well.
        return output.decode().rpartition("\n")[0].split()


@pytest.fixture
def start_writer(tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    writers: list[Writer] = []

    def start(
        options: dict[str, Any] | None = None,
        mapping: dict[str, Any] | None = None,
        **more: Any,
    ) -> Writer:
        spool = {"spool_dir": str(tmp_path / "spool"), "uri": f"file://{tmp_path}/out"}
        writers.append(Writer({**spool, **(mapping or {}), **more}, options or {}))
        return writers[-1]

    yield start
    for writer in writers:
        if writer._process.poll() is None:
            writer.kill()


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a small disk; skips the test if that is not permitted."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True)
        except FileNotFoundError:
            pytest.skip("there is no mount program")
        if done.returncode != 0:
            pytest.skip("mounting a small disk is not permitted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
