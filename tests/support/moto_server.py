"""Moto's S3 server: it checks no signatures, but knows KMS and storage classes."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from tests.support.s3_servers import S3Server, run_s3_server


def run_moto() -> AbstractContextManager[S3Server]:
    """Runs an empty S3 server."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    return run_s3_server("moto", lambda _, ports: [*command, str(ports[0])])
