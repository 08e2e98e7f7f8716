from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.model.batch_runner import BatchRunner, batch_buckets, choose_bucket
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.stages import Stage, StageTimer
from tests.handler.conftest import make_runner
from tests.support.photographs import PHOTOGRAPHS

CONFIG = HandlerConfig.from_mapping({}, environ={})
CPU = torch.device("cpu")
CLASSES = 1000


class ChannelMeans(torch.nn.Module):
    """Three classes: the mean of each channel; remembers the shapes it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.batches.append(pictures.shape[0])
        return pictures.mean(dim=(2, 3))


def make_small(top_k: int = 5, max_batch: int = 4) -> tuple[BatchRunner, ChannelMeans]:
    settings = {"image_size": 16, "mean": [0, 0, 0], "std": [1, 1, 1], "top_k": top_k}
    config = HandlerConfig.from_mapping(settings, environ={})
    model = ChannelMeans()
    return BatchRunner(EagerEngine(model, config, CPU), config, CPU, max_batch), model


def photographs(count: int) -> list[Pixels]:
    pictures = [p.rgb.resize((224, 224)) for p in PHOTOGRAPHS]
    return [np.asarray(pictures[i % len(pictures)]) for i in range(count)]


def test_picture_in_the_batch_is_the_one_that_is_explained() -> None:
    runner = make_runner(CONFIG)
    pictures = photographs(3)
    for index, picture in enumerate(pictures):
        runner.put(index, picture)
    for index, picture in enumerate(pictures):
        np.testing.assert_array_equal(runner.picture(index)[0].numpy(), picture)


def test_top_k_is_cut_to_the_models_classes() -> None:
    runner, _ = make_small(top_k=5)
    runner.put(0, np.full((16, 16, 3), (0, 200, 100), np.uint8))
    top_k = runner.run(1, StageTimer())
    assert top_k.classes.tolist() == [[1, 2, 0]]
    assert top_k.probabilities.sum() == pytest.approx(1.0)
    assert runner.classes == 3


@pytest.mark.parametrize(
    ("max_batch", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_warm_up_runs_the_batch_sizes_there_will_be(
    max_batch: int, sizes: list[int]
) -> None:
    runner, model = make_small(max_batch=max_batch)
    runner.warm_up()
    assert model.batches == sizes


def test_bucket_is_the_smallest_that_holds_the_batch() -> None:
    sizes = batch_buckets(12)
    assert sizes == [1, 2, 4, 8, 12]
    counts = {1: 1, 3: 4, 8: 8, 9: 12, 12: 12}
    assert {count: choose_bucket(count, sizes) for count in counts} == counts
    assert choose_bucket(13, sizes) is None
    assert choose_bucket(1, []) is None


def test_the_largest_batch_is_captured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = make_small(max_batch=6)
    sizes: list[int] = []
    monkeypatch.setattr(runner, "_capture", sizes.append)
    runner._capture_all()
    # An engine's buffer that grew after a capture would leave its graph a freed address.
    assert sizes == [6, 4, 2, 1]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Matrix products without TF32, which TorchServe's base_handler turns on once it is imported:
    an H100 then moves a probability of the test's touchy model by 0.0017."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@needs_gpu
def test_pictures_wait_in_pinned_memory_also_after_growing() -> None:
    runner = make_runner(CONFIG, max_batch=2, device="cuda")
    assert runner._host.is_pinned()
    runner.grow(5)
    assert runner._host.is_pinned()
    assert runner.run(5, StageTimer()).classes.shape == (5, 5)


@pytest.mark.gpu
@needs_gpu
def test_events_tell_the_copy_from_the_forward_pass() -> None:
    runner = make_runner(CONFIG, max_batch=64, device="cuda")
    runner.warm_up()
    timer = StageTimer()
    runner.run(64, timer)
    assert timer.seconds[Stage.TRANSFER] > 0
    assert timer.seconds[Stage.INFERENCE] > 0
    timings = timer.read()
    assert 0 <= timings.other_s < 0.5 * timings.total_s


@pytest.mark.gpu
@needs_gpu
def test_batches_in_a_row_never_see_each_others_pictures() -> None:
    runner = make_runner(CONFIG, max_batch=1, device="cuda")
    pictures = photographs(20)
    classes = []
    for picture in pictures:
        runner.put(0, picture)
        classes.append(int(runner.run(1, StageTimer()).classes[0][0]))
    whole = make_runner(CONFIG, max_batch=20, device="cuda")
    for index, picture in enumerate(pictures):
        whole.put(index, picture)
    assert classes == whole.run(20, StageTimer()).classes[:, 0].tolist()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("full_precision")
def test_every_captured_size_answers_like_the_cpu() -> None:
    on_cpu = make_runner(CONFIG, max_batch=64)
    captured = make_runner(CONFIG, max_batch=64, device="cuda")
    captured.warm_up()
    for count in (64, 1, 2, 5, 16, 33, 64):
        for index, picture in enumerate(photographs(count)):
            on_cpu.put(index, picture)
            captured.put(index, picture)
        answers = [runner.run(count, StageTimer()) for runner in (on_cpu, captured)]
        np.testing.assert_allclose(
            answers[0].probabilities, answers[1].probabilities, atol=1e-3
        )


@pytest.mark.gpu
@needs_gpu
def test_graph_answers_like_the_model_and_is_captured_again_after_growing() -> None:
    plain = make_runner(
        HandlerConfig.from_mapping({"cuda_graphs": False}, environ={}), device="cuda"
    )
    captured = make_runner(CONFIG, max_batch=4, device="cuda")
    captured.warm_up()
    assert captured.captured_sizes == [1, 2, 4]
    captured.grow(8)
    assert captured.captured_sizes == [1, 2, 4, 8]
    for count in (1, 3, 7):
        for index, picture in enumerate(photographs(count)):
            plain.put(index, picture)
            captured.put(index, picture)
        answers = [runner.run(count, StageTimer()) for runner in (plain, captured)]
        np.testing.assert_array_equal(answers[0].classes, answers[1].classes)
        np.testing.assert_allclose(
            answers[0].probabilities, answers[1].probabilities, atol=1e-5
        )
