"""Segments that a killed process has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.handler.prediction_log.packing import read_segment, split_torn
from offpath.handler.prediction_log.segment import SealedSegment, SegmentName


@pytest.mark.parametrize(
    ("data", "lines", "torn"),
    [
        pytest.param(b'{"a":1}\n', b'{"a":1}\n', b"", id="whole"),
        pytest.param(b'{"a":1}\n{"b"', b'{"a":1}\n', b'{"b"', id="torn-last-line"),
        pytest.param(b'{"a":1}\n{"b":2}', b'{"a":1}\n', b'{"b":2}', id="no-newline"),
        pytest.param(b'{"a"', b"", b'{"a"', id="nothing-but-torn"),
        pytest.param(b"", b"", b"", id="empty"),
        pytest.param(
            b'{"a":1}\n\0\0\0\n{"b":2}\n',
            b'{"a":1}\n{"b":2}\n',
            b"\0\0\0\n",
            id="zeros",
        ),
    ],
)
def test_complete_lines_are_separated_from_torn_ones(
    data: bytes, lines: bytes, torn: bytes
) -> None:
    assert split_torn(data) == (lines, torn)


def test_a_torn_line_is_set_aside_beside_the_owners_folder(tmp_path: Path) -> None:
    name = SegmentName("host-1-2", "20261121T03", 1, "gzip")
    path = tmp_path / "host-1-2" / name.file_name
    path.parent.mkdir()
    path.write_bytes(b'{"a":1}\n{"torn')

    lines = read_segment(SealedSegment(name, path, 15, 0.0))

    assert lines == b'{"a":1}\n'
    aside = tmp_path / "host-1-2-20261121T03-000001.jsonl.gz.torn"
    assert aside.read_bytes() == b'{"torn'
    assert path.read_bytes() == b'{"a":1}\n{"torn'
