"""Our answers beside the stock image_classifier's, on real photographs.

The bounds are on the largest difference of any probability. Exact decoding is bit-equal but for
rounding in the normalisation.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.archive.sources.model_source import load_model_source
from offpath.handler.config import HandlerConfig
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from tests.handler.conftest import classify
from tests.support.photographs import PHOTOGRAPHS, encode

BOUNDS = {"exact": 0.01, "scaled": 0.03}
CPU = torch.device("cpu")


@pytest.mark.usefixtures("one_thread")
def test_photographs_are_answered_like_stock() -> None:
    source = load_model_source("efficientnet-lite0", None)
    model = source.module.eval()
    stock = ImageClassifier()
    stock.device = CPU
    *geometry, _ = stock.image_processing.transforms
    normalize = transforms.Normalize(source.handler["mean"], source.handler["std"])
    stock.image_processing = transforms.Compose([*geometry, normalize])

    def make_pipeline(decode: str) -> Pipeline:
        config = HandlerConfig.from_mapping({**source.handler, "top_k": 1000, "decode": decode}, {})
        runner = BatchRunner(EagerEngine(model, config, CPU), config, CPU, 1)
        return Pipeline(config, runner, {}, threads=1)

    pipelines = {decode: make_pipeline(decode) for decode in BOUNDS}
    assert len(PHOTOGRAPHS) >= 24
    for photograph in PHOTOGRAPHS:
        body = bytearray(encode(photograph.rgb, "JPEG", quality=95))
        with torch.inference_mode():
            expected = torch.softmax(model(stock.preprocess([{"body": body}])), dim=1)[0].numpy()
        for decode, bound in BOUNDS.items():
            by_class = json.loads(classify(pipelines[decode], [body])[0].body)
            got = np.array([by_class[str(number)] for number in range(1000)])
            assert np.abs(expected - got).max() <= bound, photograph.name
            assert expected.argmax() == got.argmax(), photograph.name
