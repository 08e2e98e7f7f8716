"""Triton's settings and answers; test_adapters.py starts it."""

from __future__ import annotations

import struct

import pytest

from offpath.profiling.load.model_under_test import ModelUnderTest, load_model
from offpath.profiling.servers.triton import Triton, read_outputs


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


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


def test_photographs_are_batched_as_strings(model: ModelUnderTest) -> None:
    config = Triton(model, 2).make_config()

    assert "max_batch_size: 8" in config
    assert "data_type: TYPE_STRING, dims: [ 1 ]" in config
    assert "max_queue_delay_microseconds: 1000" in config
    assert "kind: KIND_CPU, count: 2" in config


def test_sweep_changes_the_batch_size(model: ModelUnderTest) -> None:
    server = Triton(model, 2)
    server.batch_size = 1

    assert "max_batch_size: 1\n" in server.make_config()
    assert server.settings["max_batch_size"] == 1
