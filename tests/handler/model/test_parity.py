"""Our answers beside the stock image_classifier's, on real photographs.

Exact decoding: within 0.01 (it is bit-equal for all but rounding in the normalisation).
DCT-scaled decoding: within 0.03. Both bounds are on the largest difference of any probability.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.handler.config import HandlerConfig
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from tests.support.photographs import PHOTOGRAPHS, encode

TOP_K = 1000


class StockReference:
    """ImageClassifier's own preprocess, with the model's mean and std in its Normalize."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        handler = ImageClassifier()
        handler.device = torch.device("cpu")
        *geometry, normalize = handler.image_processing.transforms
        if source.handler:
            normalize = transforms.Normalize(source.handler["mean"], source.handler["std"])
        handler.image_processing = transforms.Compose([*geometry, normalize])
        self._handler = handler
        self._model = source.module.eval()

    @cache
    def probabilities(self, payload: bytes) -> np.ndarray:
        batch = self._handler.preprocess([{"body": bytearray(payload)}])
        with torch.inference_mode():
            return torch.softmax(self._model(batch), dim=1)[0].numpy()


class Subject:
    """Our pipeline over the same model."""

    def __init__(self, source: ModelSource, **settings: object) -> None:
        config = HandlerConfig.from_mapping({**source.handler, "top_k": TOP_K, **settings}, {})
        labels = {index: str(index) for index in range(1000)}
        device = torch.device("cpu")
        engine = EagerEngine(source.module.eval(), config, device)
        runner = BatchRunner(engine, config, device, 1)
        self._pipeline = Pipeline(config, runner, labels, threads=1)

    def probabilities(self, payload: bytes) -> np.ndarray:
        reply = self._pipeline.classify([{"body": bytearray(payload)}])[0]
        assert reply.status == 200, reply.body
        by_label = json.loads(reply.body)
        return np.array([by_label[str(index)] for index in range(1000)])


@pytest.fixture(scope="module")
def stock() -> StockReference:
    return StockReference(load_model_source("efficientnet-lite0", None))


@pytest.mark.parametrize(("decode", "bound"), [("exact", 0.01), ("scaled", 0.03)])
def test_photographs_are_answered_like_stock(
    stock: StockReference, decode: str, bound: float
) -> None:
    subject = Subject(stock.source, decode=decode)
    assert len(PHOTOGRAPHS) >= 24
    for photograph in PHOTOGRAPHS:
        payload = encode(photograph.rgb, "JPEG", quality=95)
        expected, got = stock.probabilities(payload), subject.probabilities(payload)
        assert np.abs(expected - got).max() <= bound, photograph.name
        assert expected.argmax() == got.argmax(), photograph.name
