from __future__ import annotations

import gc
import json
import math
import sys
import threading
import time
from typing import Any

import pytest
import torch

from offpath.handler import input_maker
from offpath.handler.contract import Item, Reply, Request
from offpath.handler.image.decode import DecodedImage, DecodeOptions
from offpath.handler.image.formats import Payload
from offpath.handler.pipeline import Pipeline
from tests.guarantees import guarantee
from tests.handler.conftest import MakePipeline, classify
from tests.support.clock import Clock
from tests.support.eventually import MAX_S
from tests.support.photographs import PHOTOGRAPHS, encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")
PNG = encode(find_photograph("chelsea").rgb.resize((90, 60)), "PNG")


def assert_same_answer(reply: Reply, alone: Reply) -> None:
    """Compares two replies, except for the rounding of another batch size's matrix product."""
    assert reply.status == alone.status
    assert json.loads(reply.body) == pytest.approx(json.loads(alone.body), abs=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_and_replies_keep_their_order(make_pipeline: MakePipeline, threads: int) -> None:
    pipeline = make_pipeline(threads)
    payloads: list[Any] = [encode(p.image, "PNG", compress_level=1) for p in PHOTOGRAPHS]
    payloads[3::4] = [b"junk"] * len(payloads[3::4])
    replies = classify(pipeline, payloads)
    for payload, reply in zip(payloads, replies):
        assert_same_answer(reply, classify(pipeline, [payload])[0])


def test_failed_batch_leaves_no_thread_that_still_decodes(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, began, ended = threading.get_ident(), threading.Event(), threading.Event()

    def decode(self: Pipeline, item: Item, is_alone: bool) -> None:
        if threading.get_ident() == caller:
            assert began.wait(MAX_S)
            raise RuntimeError("a bug")
        began.set()
        time.sleep(0.2)  # the caller has failed by then
        ended.set()

    monkeypatch.setattr(Pipeline, "_decode", decode)
    with pytest.raises(RuntimeError, match="a bug"):
        make_pipeline(2).read_batch([Request(JPEG)] * 2)
    assert ended.is_set()


def test_a_batch_does_not_wait_for_the_helpers_of_another(make_pipeline: MakePipeline) -> None:
    pipeline, is_over = make_pipeline(2), threading.Event()
    busy = pipeline._pool.submit(is_over.wait, MAX_S)
    assert [reply.status for reply in classify(pipeline, [JPEG] * 3)] == [200] * 3
    assert busy.running()
    is_over.set()


@pytest.mark.parametrize(
    ("score", "settings"),
    [
        pytest.param(math.nan, {"activation": "softmax"}, id="nan"),
        pytest.param(math.nan, {"activation": "none", "threshold": 0.1}, id="labels"),
        pytest.param(math.inf, {"activation": "none"}, id="infinity"),
    ],
)
def test_a_best_score_that_is_not_finite_fails_its_item_alone(
    make_pipeline: MakePipeline,
    score: float,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make_pipeline(**settings)
    engine = pipeline.runner.engine

    def spoil_first(images: torch.Tensor) -> torch.Tensor:
        outputs = engine(images)
        outputs[0, 7] = score
        outputs[:, 8] = -math.inf  # as a model masks a class
        return outputs

    monkeypatch.setattr(pipeline.runner, "engine", spoil_first)
    monkeypatch.setattr(pipeline.runner, "_top_k", 1000)
    failed, good = classify(pipeline, [JPEG, PNG])
    assert (failed.status, json.loads(failed.body)["type"]) == (503, "ModelFailed")
    assert good.status == 200 and b"null" not in good.body


@guarantee(
    "A bad item or a time-out in a batch",
    "handler/pipeline.py",
    "            decoded = time.perf_counter()  # only decoding raises",
    "            raise",
)
def test_stale_image_of_an_earlier_batch_is_never_answered(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    classify(pipeline, [JPEG] * 4)
    broken = PNG[:200]
    replies = classify(pipeline, (broken, PNG, broken))
    assert [reply.status for reply in replies] == [422, 200, 422]
    assert_same_answer(replies[1], classify(pipeline, [PNG])[0])


def test_limits_come_from_the_settings(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(max_pixels=5400, max_payload_bytes=20_000)
    assert classify(pipeline, [PNG])[0].status == 200
    for body in (JPEG, b"\x89PNG" + bytes(20_000)):
        assert classify(pipeline, [body])[0].status == 413
    assert classify(make_pipeline(max_pixels=5399), [PNG])[0].status == 413


@guarantee("A bad item or a time-out in a batch")
def test_bug_in_the_decoder_raises_instead_of_becoming_a_4xx(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bug is not the client's fault, so it must not become a 4xx.
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(input_maker, "transform_with_torch", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        classify(make_pipeline(), [JPEG])


@guarantee(
    "Hours of good and hostile images",
    "handler/errors.py",
    "return error.with_traceback(None)",
    "return error",
)
@pytest.mark.parametrize("payload", [JPEG[: len(JPEG) // 2], b"not an image", b""])
def test_bad_payload_is_freed_with_its_batch_without_the_garbage_collector(
    make_pipeline: MakePipeline, payload: bytes
) -> None:
    pipeline = make_pipeline()
    body = bytearray(payload)
    classify(pipeline, [body])
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(body)
        for _ in range(5):
            classify(pipeline, [body])
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


@guarantee(
    "A bad item or a time-out in a batch",
    "handler/pipeline.py",
    "if start > end_s:",
    "if False:",
)
def test_batch_near_its_timeout_gives_up_items_that_are_not_decoded_yet(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = make_pipeline()
    slow._batch_s = 5
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    decode = input_maker.decode_image

    def decode_slowly(payload: Payload, options: DecodeOptions) -> DecodedImage:
        clock.pass_s(4)
        return decode(payload, options)

    monkeypatch.setattr(input_maker, "decode_image", decode_slowly)
    replies = classify(slow, [JPEG] * 4)
    assert [reply.status for reply in replies] == [200, 200, 503, 503]
    # The next batch begins afresh.
    assert classify(slow, [JPEG])[0].status == 200


def test_batch_larger_than_announced_is_answered(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(max_batch=2)
    replies = classify(pipeline, [PNG] * 5)
    assert [reply.status for reply in replies] == [200] * 5
    first, *others = (json.loads(reply.body) for reply in replies)
    # Two of torch's threads may round the rows of a matrix product differently.
    assert others == [pytest.approx(first, abs=1e-5)] * 4
