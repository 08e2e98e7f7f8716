"""Identities in the spool and in the bucket."""

from __future__ import annotations

import re

import pytest

from offpath.handler.prediction_log.owner import make_owner_name
from offpath.handler.prediction_log.segment import SegmentName, parse_segment_name
from offpath.handler.prediction_log.sink_file import make_sink_folder_name


@pytest.mark.parametrize(("compression", "end"), [("gzip", ".gz"), ("zstd", ".zst"), ("none", "")])
def test_the_key_is_the_identity_by_day_and_hour(compression: str, end: str) -> None:
    name = SegmentName("node-7-1xab", "20261121T03", 17, compression)

    assert name.key == f"dt=2026-11-21/hour=03/node-7-1xab-000017.jsonl{end}"
    assert parse_segment_name("node-7-1xab", name.file_name) == name


def test_owner_names_say_host_pid_start_and_never_repeat() -> None:
    names = {make_owner_name() for _ in range(100)}

    assert len(names) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9.]+-\d+-\d+x[0-9a-f]{8}", name) for name in names)


def test_sinks_with_similar_uris_have_different_folders() -> None:
    assert make_sink_folder_name("s3://a/b-c") != make_sink_folder_name("s3://a/b/c")
