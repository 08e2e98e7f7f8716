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

EXACT_BOUND = 0.01
SCALED_BOUND = 0.03
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


@cache
def load_stock(model: str) -> StockReference:
    weights = "random" if model == "resnet50" else None
    return StockReference(load_model_source(model, weights))


# The handler's part is the same for any model, and that of the first is compared by default.
@pytest.fixture(params=["efficientnet-lite0", pytest.param("resnet50", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compare(
    payloads: dict[str, bytes], model: str = "efficientnet-lite0", **settings: object
) -> tuple[dict[str, float], list[str]]:
    """Largest probability difference per image, and the images whose top-1 changed."""
    stock = load_stock(model)
    subject = Subject(stock.source, **settings)
    differences, flipped = {}, []
    for name, payload in payloads.items():
        expected, got = stock.probabilities(payload), subject.probabilities(payload)
        differences[name] = float(np.abs(expected - got).max())
        if expected.argmax() != got.argmax():
            flipped.append(name)
    worst = max(differences, key=lambda name: differences[name])
    print(f"largest difference {differences[worst]:.5f} ({worst}), {len(payloads)} images")
    return differences, flipped


@cache
def as_shipped() -> dict[str, bytes]:
    return {
        photo.name: encode(photo.image.convert("RGB"), "JPEG", quality=95) for photo in PHOTOGRAPHS
    }


def test_exact_decoding_answers_like_stock(model: str) -> None:
    differences, flipped = compare(as_shipped(), model, decode="exact")
    assert len(differences) >= 24
    assert max(differences.values()) <= EXACT_BOUND
    assert not flipped


def test_scaled_decoding_answers_like_stock(model: str) -> None:
    differences, flipped = compare(as_shipped(), model)
    assert len(differences) >= 24
    assert max(differences.values()) <= SCALED_BOUND
    assert not flipped
