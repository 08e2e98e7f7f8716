"""A stand-in for S3 beside a server under test: it takes each put and answers after a while.

Our log ships its segments to it, and the naive handler puts one object for each prediction. It
keeps nothing, checks no signature, and prints the path of each put.

python -m offpath.profiling.servers.put_store
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from offpath.profiling.servers.server_process import start_process
from offpath.serving.server.server_settings import LOOPBACK

MODULE = "offpath.profiling.servers.put_store"
BUCKET = "offpath-predictions"
PUT_LATENCY_MS = 30.0
# Our `prediction_log:` section, with short segments so that any window holds some uploads. The
# stand-in's address is not in it, because archives are built before it starts.
PREDICTION_LOG: Mapping[str, Any] = {
    "uri": f"s3://{BUCKET}/offpath",
    "segment_max_age_s": 2,
    "s3": {"region": "us-east-1"},
}
# With these the AWS default chain ignores the host's own credentials.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "offpath",
    "AWS_SECRET_ACCESS_KEY": "offpath",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    # The stand-in knows no other checksum than the MD5 that is S3's ETag.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}


@dataclass(frozen=True)
class Beside:
    """The variables and processes of what runs beside a server."""

    env: Mapping[str, str] = field(default_factory=dict)
    pids: Sequence[int] = ()


@contextmanager
def run_put_store() -> Iterator[Beside]:
    """Runs the stand-in with an empty spool; yields the variables of both handlers.

    Raises ExpectedError if it does not start.
    """
    with TemporaryDirectory(prefix="offpath-puts-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        log = folder / "puts.log"
        with start_process(
            "put store",
            [sys.executable, "-m", MODULE],
            log,
            lambda: log.read_text().endswith("\n"),
            scratch=folder,
            stop_timeout_s=0.0,
        ) as process:
            url = log.read_text().strip()
            where = {
                "OFFPATH_NAIVE_BUCKET": BUCKET,
                "OFFPATH_NAIVE_ENDPOINT": url,
                "OFFPATH_SPOOL_DIR": str(folder / "spool"),
                "AWS_ENDPOINT_URL_S3": url,
            }
            yield Beside({**CREDENTIALS, **where}, (process.pid,))


class PutHandler(BaseHTTPRequestHandler):
    """Answers each put with the ETag that proves what was received."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(PUT_LATENCY_MS / 1e3)
        print(self.path, flush=True)
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing: the path is printed already."""


if __name__ == "__main__":
    with ThreadingHTTPServer((LOOPBACK, 0), PutHandler) as server:
        print(f"http://{LOOPBACK}:{server.server_port}", flush=True)
        server.serve_forever()
