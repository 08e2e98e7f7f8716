from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.batch_runner import BatchRunner, CapturedBatch
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.parity import ParitySet
from offpath.handler.stages import StageTimer
from tests.handler.conftest import make_runner, photographs

CONFIG = HandlerConfig.from_mapping({}, environ={})
CPU = torch.device("cpu")


class ChannelMeans(torch.nn.Module):
    """Three classes: the mean of each channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))


def make_small(max_batch: int) -> BatchRunner:
    settings = {"image_size": 16, "mean": [0, 0, 0], "std": [1, 1, 1]}
    config = HandlerConfig.from_mapping(settings, environ={})
    return BatchRunner(EagerEngine(ChannelMeans(), config, CPU), config, CPU, max_batch)


class Replay:
    """Stands for a CUDA graph: the CPU runs the model again into the graph's tensors."""

    def __init__(self, runner: BatchRunner, size: int) -> None:
        self.images = runner._images[:size]
        self.runner = runner
        self.scores = runner.classify(self.images)[0].clone()

    def replay(self) -> None:
        self.scores.copy_(self.runner.classify(self.images)[0])


class OldAnswers(Replay):
    """Replays nothing, as an empty graph does (pytorch issue 87894)."""

    def replay(self) -> None:
        pass


class AnswersWithANaN(Replay):
    def replay(self) -> None:
        super().replay()
        self.scores[0, 0] = float("nan")


def capture_as(
    kind: type[Replay], monkeypatch: pytest.MonkeyPatch, max_batch: int = 4
) -> BatchRunner:
    """Returns a runner on the CPU whose largest graph is of the given kind."""
    images = np.stack([image[::14, ::14] for image in photographs(3)])
    runner = make_small(max_batch)
    nothing = np.zeros((0, 3), np.float32)
    runner._parity, runner._has_graphs = ParitySet(images, nothing), True

    def capture(size: int, pool: Any) -> CapturedBatch:
        graph = (kind if size >= max_batch else Replay)(runner, size)
        return CapturedBatch(graph, graph.scores, graph.scores, graph.scores)

    monkeypatch.setattr(runner, "_capture", capture)
    return runner


@pytest.mark.parametrize("kind", [OldAnswers, AnswersWithANaN])
def test_a_graph_that_does_not_answer_like_the_model_fails_the_start(
    kind: type[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = capture_as(kind, monkeypatch)
    with pytest.raises(ConfigError, match="batch of 4 gives other answers.*cuda_graphs"):
        runner.warm_up()
    assert runner.captured_sizes == []


@pytest.mark.parametrize("has_photographs", [True, False])
def test_graphs_that_answer_like_the_model_serve(
    monkeypatch: pytest.MonkeyPatch, has_photographs: bool
) -> None:
    runner = capture_as(Replay, monkeypatch)
    if not has_photographs:
        runner._parity = None
    runner.warm_up()
    assert runner.captured_sizes == [1, 2, 4]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_graph_answers_like_the_model_and_is_captured_again_after_growing() -> None:
    plain = make_runner(
        HandlerConfig.from_mapping({"cuda_graphs": False}, environ={}), device="cuda"
    )
    captured = make_runner(CONFIG, max_batch=4, device="cuda")
    captured.warm_up()
    assert captured.captured_sizes == [1, 2, 4]
    captured.begin(7)
    assert captured.captured_sizes == [1, 2, 4, 8]
    for count in (1, 3, 7):
        for index, image in enumerate(photographs(count)):
            plain.pixels[index] = image
            captured.pixels[index] = image
        answers = [runner.run(count, StageTimer()) for runner in (plain, captured)]
        np.testing.assert_array_equal(answers[0].classes, answers[1].classes)
        np.testing.assert_allclose(answers[0].probabilities, answers[1].probabilities, atol=1e-5)
