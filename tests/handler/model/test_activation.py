"""Compares the scores of each activation with plain PyTorch, in replies and in predictions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from offpath.handler.classifier import encode_items
from offpath.handler.config import HandlerConfig
from offpath.handler.contract import Request
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from tests.handler.conftest import classify
from tests.support.images import npy

CPU = torch.device("cpu")
SIZE = 16
COLOURS = [(250, 10, 200), (0, 255, 0), (128, 127, 129), (3, 2, 1)]
PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda outputs: torch.softmax(outputs, 1),
    "sigmoid": torch.sigmoid,
    "none": lambda outputs: outputs,
}


class Spread(torch.nn.Module):
    """The mean of each channel, from -4 to 4."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)) * 8 - 4


def make_config(**settings: object) -> HandlerConfig:
    base = {"image_size": SIZE, "mean": [0, 0, 0], "std": [1, 1, 1]}
    return HandlerConfig.from_mapping({**base, **settings}, environ={})


def make_small(**settings: object) -> Pipeline:
    config = make_config(**settings)
    runner = BatchRunner(EagerEngine(Spread(), config, CPU), config, CPU, 4)
    return Pipeline(config, runner, dict(enumerate("rgb")), 1)


def make_images() -> torch.Tensor:
    return torch.tensor(COLOURS, dtype=torch.uint8).view(-1, 1, 1, 3).expand(-1, SIZE, SIZE, 3)


def make_bodies() -> list[bytes]:
    return [npy(image.numpy()) for image in make_images()]


def plain_scores(activation: str) -> torch.Tensor:
    planes = make_images().permute(0, 3, 1, 2).float() / 255
    return PLAIN[activation](Spread()(planes))


@pytest.mark.parametrize("activation", PLAIN)
def test_replies_and_predictions_are_plain_pytorchs(activation: str) -> None:
    pipeline = make_small(activation=activation)
    batch = pipeline.predict(pipeline.read_batch([Request(body) for body in make_bodies()]))
    for item, reply, scores in zip(batch.items, encode_items(batch), plain_scores(activation)):
        expected = dict(zip("rgb", scores.tolist()))
        assert json.loads(reply.body) == pytest.approx(expected, abs=1e-5)
        # The prediction log records these.
        assert dict(item.predictions) == pytest.approx(expected, abs=1e-5)
        best = [score for _, score in item.predictions]
        assert best == sorted(best, reverse=True)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.99, 1.0])
def test_threshold_answers_all_classes_that_reach_it(threshold: float) -> None:
    pipeline = make_small(activation="sigmoid", threshold=threshold, top_k=1)
    replies = classify(pipeline, make_bodies())
    for reply, scores in zip(replies, plain_scores("sigmoid")):
        over = {n: s for n, s in zip("rgb", scores.tolist()) if s >= threshold}
        assert json.loads(reply.body) == pytest.approx(over, abs=1e-5)
    assert any(reply.body == b"{}" for reply in replies) == (threshold > 0)
