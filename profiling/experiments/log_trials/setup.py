"""What the trials share: archives, servers, load, and what arrived in the bucket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.log_clients import Answers, Clients
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers import archives
from offpath.profiling.servers.s3_servers import S3Server
from offpath.serving.log_reading import Period, read_records
from offpath.serving.log_store import open_store_at
from offpath.serving.torchserve import ServerSettings, TorchServe

MODEL = "near-free"
BUCKET = "offpath-trial"
URI = f"s3://{BUCKET}/predictions"

Say = Callable[[str], None]


@contextlib.contextmanager
def serve(
    folder: Path, archive: Path, env: Mapping[str, str]
) -> Iterator[tuple[TorchServe, str]]:
    """A TorchServe with one archive; (server, URL to post to)."""
    server = TorchServe(make_server_settings(folder, archive, env))
    with server:
        yield server, predict_url(server)


def make_server_settings(
    folder: Path, archive: Path, env: Mapping[str, str]
) -> ServerSettings:
    """Free ports, logs in `folder`."""
    return ServerSettings(
        model_store=archive.parent,
        models=(archive.name,),
        inference_port=0,
        management_port=0,
        metrics_port=0,
        log_dir=folder / "logs",
        env=env,
    )


def predict_url(server: TorchServe) -> str:
    """Where pictures are posted."""
    return f"{server.inference_url}/predictions/{archives.NAME}"


def build_archive(folder: Path, workers: int, endpoint_url: str) -> Path:
    """The near-free model's archive with a log of short segments."""
    model = load_model(MODEL)
    config = archives.offpath_config(model, workers)
    config["handler"]["prediction_log"] = {
        "uri": URI,
        "segment_max_age_s": 2,
        "retry_max_s": 5,
        "s3": {"endpoint_url": endpoint_url, "region": "us-east-1", "timeout_s": 10},
    }
    folder.mkdir(parents=True)
    return archives.build_offpath(model, config, folder)


def make_environ(s3: S3Server, spool: Path) -> dict[str, str]:
    """Environment of a server whose log is on."""
    return {**s3.environ, "OFFPATH_SPOOL_DIR": str(spool)}


def drain(s3: S3Server, spool: Path) -> None:
    """`offpath logs ship`, in a process of its own as an operator would."""
    command = [sys.executable, "-m", "offpath", "logs", "ship", "--spool", str(spool)]
    done = subprocess.run(
        command, env={**os.environ, **s3.environ}, capture_output=True, text=True
    )
    if done.returncode:
        raise ExpectedError(f"offpath logs ship failed: {done.stderr.strip()}")


@contextlib.contextmanager
def credentials(s3: S3Server) -> Iterator[None]:
    """The server's credentials in this process's environment."""
    before = dict(os.environ)
    os.environ.update(s3.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def read_event_ids(s3: S3Server) -> list[str]:
    """Event ids of all records in the bucket."""
    with credentials(s3):
        store = open_store_at(URI, s3.endpoint_url, "us-east-1")
        return [str(record["event_id"]) for record in read_records(store, Period())]


def send_for(url: str, bodies: list[bytes], clients: int, seconds: float) -> Answers:
    """Answers of some seconds of load."""
    with Clients(url, bodies, clients) as load:
        time.sleep(seconds)
    return load.answers
