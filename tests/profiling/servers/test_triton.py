"""Triton's settings and answers; with its environment set up (`slow`), Triton itself."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from offpath.archive.photographs import find_sources
from offpath.profiling.load.answers import check_answers, make_checks
from offpath.profiling.load.model_under_test import ModelUnderTest, load_model
from offpath.profiling.servers.triton import (
    TritonUnderTest,
    make_triton,
    make_triton_offpath_decode,
    make_triton_thin,
    read_outputs,
)
from offpath.serving.client import make_npy

MAKERS = [make_triton, make_triton_offpath_decode, make_triton_thin]


@pytest.fixture(scope="module")
def model() -> ModelUnderTest:
    return load_model("near-free")


def make_reply(labels: dict[str, float]) -> bytes:
    """As Triton 2.51 answers a raw body."""
    names = b"".join(
        struct.pack("<I", len(label.encode())) + label.encode() for label in labels
    )
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
    config = make_triton(model, 2).make_config()

    assert "max_batch_size: 8" in config
    assert "data_type: TYPE_STRING, dims: [ 1 ]" in config
    assert "max_queue_delay_microseconds: 1000" in config
    assert "kind: KIND_CPU, count: 2" in config


def test_thin_client_sends_the_pixels_and_nothing_else(model: ModelUnderTest) -> None:
    server = make_triton_thin(model, 2)
    npy = make_npy(find_sources()[0].read_bytes())

    assert "data_type: TYPE_UINT8, dims: [ 224, 224, 3 ]" in server.make_config()
    assert server.call.wrap is not None
    assert len(server.call.wrap(npy)) == 224 * 224 * 3


def test_sweep_changes_the_batch_size(model: ModelUnderTest) -> None:
    server = make_triton(model, 2)
    server.batch_size = 1

    assert "max_batch_size: 1\n" in server.make_config()
    assert server.settings["max_batch_size"] == 1


def test_triton_that_is_not_set_up_says_how(
    model: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))

    reason = make_triton(model, 2).why_not()

    assert reason is not None
    assert "offpath bench setup triton" in reason


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_triton_gives_the_reference_answers_and_leaves_no_process(
    make: Callable[[ModelUnderTest, int], TritonUnderTest],
    model: ModelUnderTest,
    tmp_path: Path,
) -> None:
    server = make(model, 2)
    reason = server.why_not()
    if reason is not None:
        pytest.skip(reason)
    photographs = [path.read_bytes() for path in find_sources()]
    checks = [(photo, a) for photo, a in make_checks(model, photographs)]
    bodies = [(make_body(server, photo), answer) for photo, answer in checks]
    server.prepare(tmp_path / "triton")

    with server.running() as running:
        difference = check_answers(
            server.name, running.predict_url, server.call, bodies
        )
        groups = running.groups()
        os.kill(groups["frontend"][0], signal.SIGKILL)

    assert difference < 0.01
    assert len(groups["workers"]) == 2
    assert not any(psutil.pid_exists(pid) for pids in groups.values() for pid in pids)


def make_body(server: TritonUnderTest, photograph: bytes) -> bytes:
    content = photograph if server.call.content == "jpeg" else make_npy(photograph)
    return server.call.wrap(content) if server.call.wrap else content
