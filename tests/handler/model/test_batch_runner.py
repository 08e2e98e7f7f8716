from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.batch_runner import (
    BatchRunner,
    CapturedBatch,
    batch_buckets,
    choose_bucket,
    graph_sizes,
)
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.parity import ParitySet
from offpath.handler.stages import Stage, StageTimer
from tests.handler.conftest import make_runner, photographs

CONFIG = HandlerConfig.from_mapping({}, environ={})
CPU = torch.device("cpu")


class ChannelMeans(torch.nn.Module):
    """Three classes: the mean of each channel; remembers the shapes it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches.append(images.shape[0])
        return images.mean(dim=(2, 3))


def make_small(top_k: int = 5, max_batch: int = 4) -> tuple[BatchRunner, ChannelMeans]:
    settings = {"image_size": 16, "mean": [0, 0, 0], "std": [1, 1, 1], "top_k": top_k}
    config = HandlerConfig.from_mapping(settings, environ={})
    model = ChannelMeans()
    return BatchRunner(EagerEngine(model, config, CPU), config, CPU, max_batch), model


def test_the_thread_that_runs_batches_uses_the_models_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.set_device", used.append)
    runner, _ = make_small()
    runner.begin(1)
    assert not used
    runner.device = torch.device("cuda:1")
    runner.begin(1)
    assert used == [torch.device("cuda:1")]


@pytest.mark.parametrize("keeps", [True, False])
def test_raw_outputs_are_returned_where_they_are_kept(keeps: bool) -> None:
    config = HandlerConfig.from_mapping({"image_size": 16, "top_k": 1}, environ={})
    engine = EagerEngine(ChannelMeans(), config, CPU)
    runner = BatchRunner(engine, config, CPU, 4, None, keeps)
    runner.pixels[:] = np.stack(photographs(4))[:, ::14, ::14]
    outputs = engine(torch.from_numpy(runner.pixels))
    answered = runner.run(3, StageTimer()).outputs
    # A graph's, which has more rows.
    runner._graphs[4] = CapturedBatch(Graph(), *runner.classify(runner._images))
    replayed = runner._replay(3)
    if not keeps:
        assert answered is None and len(replayed) == 2
        return
    assert answered is not None and torch.equal(answered, outputs[:3])
    assert torch.equal(replayed[2], outputs[:3])


class Graph:
    """Stands for a CUDA graph whose answers stay right."""

    def replay(self) -> None:
        pass


def test_top_k_is_cut_to_the_models_classes() -> None:
    runner, _ = make_small(top_k=5)
    runner.pixels[0] = np.full((16, 16, 3), (0, 200, 100), np.uint8)
    top_k = runner.run(1, StageTimer())
    assert top_k.classes.tolist() == [[1, 2, 0]]
    assert top_k.probabilities.sum() == pytest.approx(1.0)
    assert runner.classes == 3


@pytest.mark.parametrize(
    ("max_batch", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_warm_up_runs_the_batch_sizes_there_will_be(max_batch: int, sizes: list[int]) -> None:
    runner, model = make_small(max_batch=max_batch)
    runner.warm_up()
    assert model.batches == sizes


def test_bucket_is_the_smallest_that_holds_the_batch() -> None:
    sizes = graph_sizes(18)
    assert sizes == [1, 2, 4, 8, 12, 16, 18]
    counts = {1: 1, 3: 4, 8: 8, 9: 12, 17: 18}
    assert {count: choose_bucket(count, sizes) for count in counts} == counts
    assert choose_bucket(19, sizes) is None
    assert choose_bucket(1, []) is None
    assert [graph_sizes(most) for most in (1, 2, 3)] == [[1], [1, 2], [1, 2, 3]]
    # A CPU has no graphs; every size there is a run of the model at each start.
    assert batch_buckets(18) == [1, 2, 4, 8, 16, 18]


def test_the_largest_batch_is_captured_first_and_all_share_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, _ = make_small(max_batch=6)
    seen: list[tuple[int, Any, bool]] = []

    def capture(size: int, pool: Any) -> None:
        seen.append((size, pool, torch.backends.cudnn.benchmark))

    monkeypatch.setattr(runner, "_capture", capture)
    monkeypatch.setattr(runner, "_check_graphs", lambda: None)
    runner._capture_all()
    # An engine's buffer that grew after a capture would leave its graph a freed address.
    assert [size for size, _, _ in seen] == [6, 4, 2, 1]
    assert len({pool for _, pool, _ in seen}) == 1
    assert all(is_tried for _, _, is_tried in seen)
    assert not torch.backends.cudnn.benchmark


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


class OldAnswerOfOneRow(Replay):
    def replay(self) -> None:
        self.scores[:-1].copy_(self.runner.classify(self.images)[0][:-1])


class FirstAnswers(Replay):
    """Right once, and then always the same."""

    is_replayed = False

    def replay(self) -> None:
        if not self.is_replayed:
            super().replay()
        self.is_replayed = True


class AnswersWithANaN(Replay):
    def replay(self) -> None:
        super().replay()
        self.scores[0, 0] = float("nan")


def capture_as(
    kind: type[Replay], monkeypatch: pytest.MonkeyPatch, max_batch: int = 4
) -> BatchRunner:
    """Returns a runner on the CPU whose largest graph is of the given kind."""
    images = np.stack([image[::14, ::14] for image in photographs(3)])
    runner, _ = make_small(max_batch=max_batch)
    nothing = np.zeros((0, 3), np.float32)
    runner._parity, runner._has_graphs = ParitySet(images, nothing), True

    def capture(size: int, pool: Any) -> CapturedBatch:
        graph = (kind if size >= max_batch else Replay)(runner, size)
        return CapturedBatch(graph, graph.scores, graph.scores, graph.scores)

    monkeypatch.setattr(runner, "_capture", capture)
    return runner


@pytest.mark.parametrize("kind", [OldAnswers, OldAnswerOfOneRow, FirstAnswers, AnswersWithANaN])
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


class Event:
    """Stands for a CUDA event; keeps what happens in which order."""

    log: list[str] = []

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.is_blocking = blocking

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("sleep" if self.is_blocking else "spin")

    def elapsed_time(self, end: Event) -> float:
        return 1.0


@pytest.fixture
def make_on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BatchRunner]:
    """Makes runners that take the way of CUDA, with other memory of the CPU as the device's."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "log", [])

    def make(**settings: object) -> BatchRunner:
        runner = make_runner(HandlerConfig.from_mapping(settings, environ={}))
        runner._is_cuda, runner._images = True, torch.zeros_like(runner._host)
        return runner

    return make


def test_images_of_both_decoders_reach_the_device(
    make_on_device: Callable[..., BatchRunner],
) -> None:
    runner, on_cpu = make_on_device(), make_runner(CONFIG)
    images = photographs(8)
    for from_device in ({1, 3}, set(), {0, 1, 2, 3}):
        runner.begin(4)
        images = images[1:] + images[:1]
        for index in range(4):
            on_cpu.pixels[index] = images[index]
            if index in from_device:
                runner.put_from_device(index, torch.from_numpy(images[index].copy()))
            else:
                runner.pixels[index] = images[index]
        answers = [one.run(4, StageTimer()) for one in (runner, on_cpu)]
        np.testing.assert_array_equal(answers[0].classes, answers[1].classes)
        np.testing.assert_array_equal(runner.image(3)[0].numpy(), on_cpu.image(3)[0].numpy())


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
def test_images_wait_in_pinned_memory_also_after_growing() -> None:
    runner = make_runner(CONFIG, max_batch=2, device="cuda")
    assert runner._host.is_pinned()
    runner.begin(5)
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
    assert timer.read().other_s >= 0


@pytest.mark.gpu
@needs_gpu
def test_batches_in_a_row_never_see_each_others_images() -> None:
    runner = make_runner(CONFIG, max_batch=1, device="cuda")
    images = photographs(20)
    classes = []
    for image in images:
        runner.pixels[0] = image
        classes.append(int(runner.run(1, StageTimer()).classes[0][0]))
    whole = make_runner(CONFIG, max_batch=20, device="cuda")
    for index, image in enumerate(images):
        whole.pixels[index] = image
    assert classes == whole.run(20, StageTimer()).classes[:, 0].tolist()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("full_precision")
def test_every_captured_size_answers_like_the_cpu() -> None:
    on_cpu = make_runner(CONFIG, max_batch=64)
    captured = make_runner(CONFIG, max_batch=64, device="cuda")
    captured.warm_up()
    for count in (64, 1, 2, 5, 16, 33, 64):
        for index, image in enumerate(photographs(count)):
            on_cpu.pixels[index] = image
            captured.pixels[index] = image
        answers = [runner.run(count, StageTimer()) for runner in (on_cpu, captured)]
        np.testing.assert_allclose(answers[0].probabilities, answers[1].probabilities, atol=1e-3)


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
