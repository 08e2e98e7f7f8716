"""Identities in the spool and in the bucket."""

from __future__ import annotations

import re

from offpath.handler.prediction_log.owner import make_owner_name
from offpath.handler.prediction_log.sink_file import make_sink_folder_name


def test_owner_names_say_host_pid_start_and_never_repeat() -> None:
    names = {make_owner_name() for _ in range(100)}

    assert len(names) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9.]+-\d+-\d+x[0-9a-f]{8}", name) for name in names)


def test_sinks_with_similar_uris_have_different_folders() -> None:
    assert make_sink_folder_name("s3://a/b-c") != make_sink_folder_name("s3://a/b/c")
