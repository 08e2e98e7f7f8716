from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from offpath.handler.image.decode import DecodeOptions, decode_image
from offpath.handler.process.warmup import warm_up_payloads
from tests.handler.conftest import MakePipeline


@pytest.mark.parametrize("size", [16, 224, 480])
def test_pictures_reach_both_decoders_and_the_scaling(size: int) -> None:
    jpeg, png = warm_up_payloads(size)
    assert [Image.open(io.BytesIO(file)).format for file in (jpeg, png)] == [
        "JPEG",
        "PNG",
    ]
    # 1.5 * 256 / 224, the default margin over the model's size.
    assert decode_image(jpeg, DecodeOptions(int(size * 1.4))).denominator == 2


def test_warm_up_leaves_a_pipeline_that_answers(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(max_batch=3)
    payloads = warm_up_payloads(224)
    pipeline.warm_up(payloads)
    assert pipeline.runner.classes == 1000
    replies = pipeline.classify([{"body": payload} for payload in payloads])
    assert [len(json.loads(reply.body)) for reply in replies] == [5, 5]
