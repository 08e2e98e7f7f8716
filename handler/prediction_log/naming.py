"""Names in the spool and in the bucket: a segment's identity is its object's key.

A segment is `<sink>/<host>-<pid>-<start>/<YYYYMMDDTHH>-<seq>.jsonl.gz.spool` in the spool and
`dt=YYYY-MM-DD/hour=HH/<host>-<pid>-<start>-<seq>.jsonl.gz` under the sink's prefix. Nothing else
goes into the key, so whoever ships a segment, however often, writes the same object.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import datetime, timezone

SUFFIX_BY_COMPRESSION = {"gzip": ".gz", "zstd": ".zst", "none": ""}
SPOOL_SUFFIX = ".spool"
TORN_SUFFIX = ".torn"
ASIDE_SUFFIX = ".aside"

_SEGMENT = re.compile(
    r"(?P<hour>\d{8}T\d{2})-(?P<sequence>\d{6,})\.jsonl(?P<suffix>|\.gz|\.zst)\.spool"
)


@dataclass(frozen=True)
class SegmentName:
    """Who wrote a segment, in which hour (UTC) it was opened, and its place in that writer's row.

    The compression belongs to the identity: a segment left by a worker that used gzip must not
    become a second, differently named object when a worker that uses zstd adopts it.
    """

    owner: str
    hour: str
    sequence: int
    compression: str

    @property
    def file_name(self) -> str:
        suffix = SUFFIX_BY_COMPRESSION[self.compression]
        return f"{self.hour}-{self.sequence:06d}.jsonl{suffix}{SPOOL_SUFFIX}"

    @property
    def key(self) -> str:
        day = f"{self.hour[:4]}-{self.hour[4:6]}-{self.hour[6:8]}"
        suffix = SUFFIX_BY_COMPRESSION[self.compression]
        base = f"{self.owner}-{self.sequence:06d}.jsonl{suffix}"
        return f"dt={day}/hour={self.hour[9:]}/{base}"


def parse_segment_name(owner: str, file_name: str) -> SegmentName | None:
    """The identity in a file name of the spool, None for files that are no segments."""
    match = _SEGMENT.fullmatch(file_name)
    if match is None:
        return None
    compression = next(
        name
        for name, suffix in SUFFIX_BY_COMPRESSION.items()
        if suffix == match["suffix"]
    )
    return SegmentName(owner, match["hour"], int(match["sequence"]), compression)


def format_hour(now: datetime | None = None) -> str:
    """The hour of a segment's opening in UTC, for instance 20261121T03."""
    return (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H")


def make_owner_name() -> str:
    """`<host>-<pid>-<start>` of this process.

    In a container the pid is often the same after each restart, and a clock may be set back, so
    the start carries eight random digits: two owners never share a name.
    """
    host = re.sub(r"[^A-Za-z0-9.]+", ".", socket.gethostname()).strip(".") or "host"
    start_ms = time.time_ns() // 1_000_000
    return f"{host}-{os.getpid()}-{start_ms}x{secrets.token_hex(4)}"


def make_sink_folder_name(uri: str) -> str:
    """A folder name for a sink: legible, and different for different URIs."""
    digest = hashlib.sha256(uri.encode()).hexdigest()[:8]
    legible = re.sub(r"[^A-Za-z0-9.]+", "-", uri).strip("-")[:60]
    return f"{legible}-{digest}"
