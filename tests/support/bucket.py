"""An empty bucket of a real S3 server, and its content."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from offpath.handler.prediction_log.packing import unpack_lines
from tests.support.s3_servers import S3Server


class Bucket:
    """A new bucket for each instance."""

    def __init__(self, server: S3Server) -> None:
        self.client = server.client()
        self.name = f"log-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name)
        self.uri = f"s3://{self.name}/predictions"

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def records(self) -> list[dict[str, Any]]:
        rows = []
        for key in self.keys():
            body = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
            rows.extend(json.loads(line) for line in unpack_lines(body))
        return rows

    def event_counts(self) -> Counter[str]:
        return Counter(row["event_id"] for row in self.records())


def read_spool(folder: Path) -> set[str]:
    """Returns the event ids of the whole lines in a spool."""
    segments = [path.read_bytes() for path in folder.glob("*/*/*.spool")]
    lines = [line for one in segments for line in one.split(b"\n")[:-1]]
    return {json.loads(line)["event_id"] for line in lines}


def read_out(folder: Path) -> Counter[str]:
    """Counts each event id in the log under a folder."""
    return Counter(
        json.loads(line)["event_id"]
        for path in folder.glob("dt=*/hour=*/*.jsonl.gz")
        if path.is_file()
        for line in unpack_lines(path.read_bytes())
    )
