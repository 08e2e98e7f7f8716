"""Segments that a killed process has left."""

from __future__ import annotations

import pytest

from offpath.handler.prediction_log.packing import split_torn


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
