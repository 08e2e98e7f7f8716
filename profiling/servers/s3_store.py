"""The S3 server for predictions: ours go in segments, the naive handler's as one object each.

It is a real server (SeaweedFS) on loopback, behind a proxy that adds a network's latency.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.servers.latency_proxy import ANSWERS_PER_PUT, LatencyProxy
from offpath.profiling.servers.s3_servers import find_weed, run_seaweedfs

BUCKET = "offpath-predictions"
PUT_LATENCY_MS = 30.0
# Our `prediction_log:` section, with short segments so that any window holds some uploads. The
# server's address is not in it, because archives are built before the server starts.
PREDICTION_LOG: Mapping[str, Any] = {
    "uri": f"s3://{BUCKET}/offpath",
    "segment_max_age_s": 2,
    "s3": {"region": "us-east-1"},
}


@dataclass(frozen=True)
class Beside:
    """The variables and processes of what runs beside a server."""

    env: Mapping[str, str] = field(default_factory=dict)
    pids: Sequence[int] = ()


def why_no_store() -> str | None:
    """Returns why no S3 server can run here, with the cure; None when it can."""
    try:
        find_weed()
    except ExpectedError as error:
        return str(error)
    return None


@contextmanager
def run_store(put_latency_ms: float = PUT_LATENCY_MS) -> Iterator[Beside]:
    """Runs a server with an empty bucket and spool; yields the variables of both handlers.

    Raises:
        ExpectedError: the S3 server does not start.
    """
    latency_s = put_latency_ms / 1e3 / ANSWERS_PER_PUT
    with (
        tempfile.TemporaryDirectory(prefix="offpath-spool-") as spool,
        run_seaweedfs() as s3,
        LatencyProxy(s3.endpoint_url, latency_s) as proxy,
    ):
        s3.client().create_bucket(Bucket=BUCKET)
        where = {
            "OFFPATH_NAIVE_BUCKET": BUCKET,
            "OFFPATH_NAIVE_ENDPOINT": proxy.endpoint_url,
            "OFFPATH_SPOOL_DIR": spool,
            # botocore's own variables. As with `endpoint_url` in the log's settings: not every S3
            # server knows the checksums that AWS clients send by default.
            "AWS_ENDPOINT_URL_S3": proxy.endpoint_url,
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }
        yield Beside({**s3.environ, **where}, (s3.pid,))
