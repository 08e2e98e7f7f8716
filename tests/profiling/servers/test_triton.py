"""Triton's settings and answers; test_adapters.py starts it."""

from __future__ import annotations

import struct

import pytest

from offpath.profiling.servers.triton import read_outputs


def make_reply(labels: dict[str, float]) -> bytes:
    """Returns the answer of Triton 2.51 to a raw body."""
    names = b"".join(struct.pack("<I", len(label.encode())) + label.encode() for label in labels)
    head = (
        '{"model_name":"classifier","model_version":"1","outputs":['
        '{"name":"LABEL","datatype":"BYTES","shape":[1,2],'
        f'"parameters":{{"binary_data_size":{len(names)}}}}},'
        '{"name":"PROBABILITY","datatype":"FP32","shape":[1,2],'
        '"parameters":{"binary_data_size":8}}]}'
    )
    values = struct.pack("<2f", *labels.values())
    return head.encode() + names + values


def test_answer_is_read_from_json_and_the_bytes_behind_it() -> None:
    # 0.0142... has bytes that are not UTF-8.
    labels = {"trombone": 0.017103751, "café": 0.5}

    assert read_outputs(make_reply(labels)) == pytest.approx(labels)


@pytest.mark.parametrize("reply", [b"{}", b'{"error":"broken"}', b"", b"\x80"])
def test_other_answers_raise_what_the_check_expects(reply: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_outputs(reply)
