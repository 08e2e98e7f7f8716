"""What the trials share: archives, servers, load, and what arrived in the bucket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from archive.labels import format_index_to_name
from offpath.errors import ExpectedError
from offpath.log_reading import Period, read_records
from offpath.log_store import open_store_at
from offpath.torchserve import ServerSettings, TorchServe
from profiling.log_clients import Answers, Clients
from profiling.model_under_test import ModelUnderTest, load_model
from profiling.s3_servers import S3Server
from profiling.servers import archives

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


def build_naive(folder: Path) -> Path:
    """The naive handler's archive; no YAML, so TorchServe's own batch settings."""
    model = load_model(MODEL)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="offpath-trial-") as scratch:
        command = _naive_command(model, Path(scratch), folder)
        done = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": scratch},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    return folder / f"{archives.NAME}.mar"


def _naive_command(model: ModelUnderTest, scratch: Path, folder: Path) -> list[str]:
    weights, labels = scratch / "weights.pt", scratch / "index_to_name.json"
    model.save_weights(weights)
    labels.write_text(format_index_to_name(model.labels), encoding="utf-8")
    config = scratch / "naive_config.json"
    config.write_bytes((archives.BASELINES_DIR / config.name).read_bytes())
    return [
        *(sys.executable, "-m", "model_archiver.model_packaging"),
        *("--model-name", archives.NAME, "--version", "1.0"),
        *("--model-file", str(model.model_file), "--serialized-file", str(weights)),
        *("--handler", str(archives.BASELINES_DIR / "naive_handler.py")),
        *("--extra-files", f"{labels},{config}"),
        *("--export-path", str(folder), "--force"),
    ]


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
