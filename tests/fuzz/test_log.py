"""Lines and names of the prediction log with any content, as left by a crash or by a stranger."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offpath.handler.prediction_log.packing import split_torn
from offpath.handler.prediction_log.record import FIELDS, Record, encode_records
from tests.fuzz.seeds import read_corpus
from tests.guarantees import guarantee

FOUND = read_corpus("log")
LINES = [b'{"event_id":"e1"}\n', b"{}\n", b"{\n", b"}\n", b"\n", b"\0\0\n", b"{\0}\n"]
pieces = st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=20)))


@guarantee("The spool or its disk is full")
@given(pieces.map(b"".join))
def test_every_byte_is_kept_or_set_aside_and_complete_lines_stay(data: bytes) -> None:
    check_repair(data)


@pytest.mark.parametrize("name", FOUND)
def test_known_log_is_repaired(name: str) -> None:
    for end in range(len(FOUND[name]) + 1)[-100:]:
        check_repair(FOUND[name][:end])


def check_repair(data: bytes) -> None:
    """Checks that no byte is lost and that only complete lines are kept."""
    lines, torn = split_torn(data)

    assert sorted(lines + torn) == sorted(data)
    assert split_torn(lines) == (lines, b"")
    for line in lines.split(b"\n")[:-1]:
        assert line.startswith(b"{") and line.endswith(b"}") and b"\0" not in line


@guarantee("Poisoned spools, segments and objects")
@given(
    st.text(st.characters()),
    st.one_of(st.none(), st.text(st.characters())),
    st.lists(st.tuples(st.text(), st.floats())),
)
@example("\udc80", "\u2028\n", [("label", float("nan"))])
def test_a_record_is_one_line_that_survives_a_repair(
    event_id: str, user_id: str | None, predictions: list[tuple[str, float]]
) -> None:
    record = Record(event_id, "2026-11-21T03:51:42.123Z", "m", "1", user_id)
    record.predictions = predictions

    line = encode_records([record], FIELDS)

    assert line.isascii() and line.count(b"\n") == 1
    assert split_torn(line) == (line, b"")
    row = json.loads(line)
    assert (row["event_id"], row["user_id"]) == (event_id, user_id)
