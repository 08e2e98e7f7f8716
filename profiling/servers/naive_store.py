"""The S3 server that `torchserve-naive-s3` puts its predictions into, one object each.

A real one (SeaweedFS) on loopback, behind a proxy that adds the time a put takes over a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from offpath.handler.errors import ExpectedError
from offpath.profiling.servers.s3_faults import ANSWERS_PER_PUT, FaultProxy
from offpath.profiling.servers.s3_servers import find_weed, run_seaweedfs

BUCKET = "offpath-naive"
# As `offpath profile --s3-latency-ms`.
PUT_LATENCY_MS = 30.0


@dataclass(frozen=True)
class Beside:
    """What runs beside a server: variables that lead it there, processes that are not its own."""

    env: Mapping[str, str] = field(default_factory=dict)
    pids: Sequence[int] = ()


def why_no_store() -> str | None:
    """Why no S3 server can run here, with the cure; None when one can."""
    try:
        find_weed()
    except ExpectedError as error:
        return str(error)
    return None


@contextmanager
def run_store() -> Iterator[Beside]:
    """An empty bucket and the naive handler's variables for it.

    Raises:
        ExpectedError: the S3 server does not start.
    """
    with run_seaweedfs() as s3:
        s3.client().create_bucket(Bucket=BUCKET)
        latency_s = PUT_LATENCY_MS / 1e3 / ANSWERS_PER_PUT
        with FaultProxy(s3.endpoint_url, latency_s) as proxy:
            where = {
                "OFFPATH_NAIVE_BUCKET": BUCKET,
                "OFFPATH_NAIVE_ENDPOINT": proxy.endpoint_url,
            }
            yield Beside({**s3.environ, **where}, (s3.pid,))
