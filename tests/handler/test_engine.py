from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from handler.config import HandlerConfig
from handler.decode import Pixels
from handler.engine import Engine
from handler.stages import Stage, StageTimer
from tests.handler.conftest import make_engine
from tests.photographs import PHOTOGRAPHS

CONFIG = HandlerConfig.from_mapping({}, environ={})
CLASSES = 1000


class ChannelMeans(torch.nn.Module):
    """Three classes: the mean of each channel; remembers the shapes it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.batches.append(pictures.shape[0])
        return pictures.mean(dim=(2, 3))


def make_small(top_k: int = 5, max_batch: int = 4) -> tuple[Engine, ChannelMeans]:
    model = ChannelMeans()
    device = torch.device("cpu")
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Engine(model, device, mean, std, 16, max_batch, top_k), model


def photographs(count: int) -> list[Pixels]:
    pictures = [p.rgb.resize((224, 224)) for p in PHOTOGRAPHS]
    return [np.asarray(pictures[i % len(pictures)]) for i in range(count)]


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        (CONFIG.mean, CONFIG.std),
        ((0.498, 0.498, 0.498), (0.502, 0.502, 0.502)),
        ((0.0, 0.5, 1.0), (1.0, 0.001, 0.5)),
    ],
)
def test_normalisation_equals_torchvisions(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    device = torch.device("cpu")
    engine = Engine(torch.nn.Identity(), device, mean, std, 224, 1, 5)
    levels = np.arange(224 * 224 * 3).reshape(224, 224, 3).astype(np.uint8)
    expected = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )(levels)
    made = engine.normalise(torch.from_numpy(levels)[None])
    assert made.shape == (1, 3, 224, 224)
    assert made.is_contiguous(memory_format=torch.channels_last)
    # Relative to 1 / std, which is what one grey level weighs.
    assert (made[0] - expected).abs().max() * min(std) < 1e-6


def test_staged_picture_is_the_one_that_is_explained() -> None:
    engine = make_engine(CONFIG)
    pictures = photographs(3)
    for slot, picture in enumerate(pictures):
        engine.stage(slot, picture)
    for slot, picture in enumerate(pictures):
        expected = engine.normalise(torch.from_numpy(picture.copy())[None])
        assert torch.equal(engine.normalised(slot), expected)


def test_answers_are_softmax_and_top_k_of_the_model() -> None:
    engine = make_engine(CONFIG)
    pictures = photographs(5)
    for slot, picture in enumerate(pictures):
        engine.stage(slot, picture)
    top_k = engine.run(5, StageTimer())
    with torch.inference_mode():
        stacked = torch.from_numpy(np.stack(pictures))
        expected = torch.softmax(engine.model(engine.normalise(stacked)), 1)
    values, indices = expected.topk(5)
    np.testing.assert_allclose(top_k.probabilities, values.numpy(), atol=1e-6)
    np.testing.assert_array_equal(top_k.classes, indices.numpy())
    assert engine.classes == CLASSES


def test_top_k_is_cut_to_the_models_classes() -> None:
    engine, _ = make_small(top_k=5)
    engine.stage(0, np.full((16, 16, 3), (0, 200, 100), np.uint8))
    top_k = engine.run(1, StageTimer())
    assert top_k.classes.tolist() == [[1, 2, 0]]
    assert top_k.probabilities.sum() == pytest.approx(1.0)
    assert engine.classes == 3


def test_half_precision_logits_still_give_float32_probabilities() -> None:
    class Half(ChannelMeans):
        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            return super().forward(pictures).bfloat16()

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    engine = Engine(Half(), torch.device("cpu"), mean, std, 16, 1, 3)
    assert engine.run(1, StageTimer()).probabilities.dtype == np.float32


def test_only_the_first_pictures_are_run() -> None:
    engine, model = make_small(max_batch=8)
    assert engine.run(3, StageTimer()).classes.shape == (3, 3)
    assert model.batches == [3]


def test_room_for_a_larger_batch_is_made_and_kept() -> None:
    engine, _ = make_small(max_batch=2)
    engine.grow(1)
    assert engine.max_batch == 2
    engine.grow(7)
    assert engine.max_batch == 7
    engine.stage(6, np.full((16, 16, 3), (0, 0, 255), np.uint8))
    assert engine.run(7, StageTimer()).classes[6][0] == 2
    engine.grow(3)
    assert engine.max_batch == 7


@pytest.mark.parametrize(
    ("max_batch", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_warm_up_runs_the_batch_sizes_there_will_be(
    max_batch: int, sizes: list[int]
) -> None:
    engine, model = make_small(max_batch=max_batch)
    engine.warm_up()
    assert model.batches == sizes


def test_time_on_the_cpu_is_inference() -> None:
    engine, _ = make_small()
    timer = StageTimer()
    engine.run(2, timer)
    assert timer.seconds[Stage.INFERENCE] > 0
    assert timer.seconds[Stage.TRANSFER] == 0


def test_no_gradients_are_kept() -> None:
    engine = make_engine(CONFIG)
    engine.run(2, StageTimer())
    assert all(weights.grad is None for weights in engine.model.parameters())


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_answers_on_the_gpu_are_those_on_the_cpu() -> None:
    answers = []
    for device in ("cpu", "cuda"):
        engine = make_engine(CONFIG, device=device)
        for slot, picture in enumerate(photographs(8)):
            engine.stage(slot, picture)
        answers.append(engine.run(8, StageTimer()))
    np.testing.assert_array_equal(answers[0].classes, answers[1].classes)
    np.testing.assert_allclose(
        answers[0].probabilities, answers[1].probabilities, atol=1e-3
    )


@pytest.mark.gpu
@needs_gpu
def test_pictures_wait_in_pinned_memory_also_after_growing() -> None:
    engine = make_engine(CONFIG, max_batch=2, device="cuda")
    assert engine._staging.is_pinned()
    engine.grow(5)
    assert engine._staging.is_pinned()
    assert engine.run(5, StageTimer()).classes.shape == (5, 5)


@pytest.mark.gpu
@needs_gpu
def test_events_tell_the_copy_from_the_forward_pass() -> None:
    engine = make_engine(CONFIG, max_batch=64, device="cuda")
    engine.warm_up()
    timer = StageTimer()
    engine.run(64, timer)
    assert timer.seconds[Stage.TRANSFER] > 0
    assert timer.seconds[Stage.INFERENCE] > 0
    timings = timer.finish()
    assert 0 <= timings.other_s < 0.5 * timings.total_s


@pytest.mark.gpu
@needs_gpu
def test_batches_in_a_row_never_see_each_others_pictures() -> None:
    engine = make_engine(CONFIG, max_batch=1, device="cuda")
    pictures = photographs(20)
    classes = []
    for picture in pictures:
        engine.stage(0, picture)
        classes.append(int(engine.run(1, StageTimer()).classes[0][0]))
    whole = make_engine(CONFIG, max_batch=20, device="cuda")
    for slot, picture in enumerate(pictures):
        whole.stage(slot, picture)
    assert classes == whole.run(20, StageTimer()).classes[:, 0].tolist()
