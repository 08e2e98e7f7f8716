from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.models.near_free import NearFree
from offpath.handler.classifier import OffpathClassifier
from offpath.handler.contract import LEFT, Reply, Request
from offpath.handler.model.batch_runner import TopK
from offpath.handler.pipeline import Batch
from offpath.handler.process.sick_worker import (
    MAX_FAILURES_IN_A_ROW,
    MAX_OUT_OF_MEMORY_IN_A_ROW,
    ModelHealth,
)
from offpath.handler.stages import Stage, StageTimer
from tests.guarantees import guarantee
from tests.handler.conftest import make_context
from tests.support.eventually import eventually
from tests.support.photographs import encode, find_photograph

pytestmark = pytest.mark.usefixtures("loading")
JPEG = encode(find_photograph("coffee").rgb, "JPEG")
PNG = encode(find_photograph("chelsea").rgb, "PNG")
COSTLY = encode(find_photograph("chelsea").rgb.resize((3000, 2000)), "PNG")


@pytest.fixture(scope="module")
def classifier(loading: None, model_dir: Path) -> Iterator[OffpathClassifier]:
    loaded = OffpathClassifier()
    loaded.initialize(
        make_context(model_dir, metrics_interval_s=3600, threads=1, explanations=True)
    )
    assert loaded.read_s == 0.0  # a server may ask before the first batch
    yield loaded
    loaded.close()


def ask(body: Any, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(body, "id", named)


def statuses(replies: list[Reply]) -> list[int]:
    return [reply.status for reply in replies]


def test_a_late_request_gets_504_undecoded_and_its_neighbour_is_answered(
    classifier: OffpathClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    make = classifier.pipeline._input_maker.make
    monkeypatch.setattr(
        classifier.pipeline._input_maker,
        "make",
        lambda payload: decoded.append(payload) or make(payload),
    )
    late = ask(PNG, x_request_timeout_ms="1000", x_request_start="t=1700000000.0")
    replies = classifier.classify([late, ask(JPEG)])
    assert statuses(replies) == [504, 200]
    assert json.loads(replies[0].body)["type"] == "DeadlineExceeded"
    assert decoded == [JPEG]
    assert classifier.read(late).status == 504
    assert decoded == [JPEG]


def test_a_costly_image_leaves_its_batch_and_counts_once(
    classifier: OffpathClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(
        classifier.metrics, "count_batch", lambda _, images, errors: counted.append(images)
    )
    monkeypatch.setattr(classifier.pipeline, "_batch_maker", None)  # restored at the end
    classifier.leave_costly()
    requests = [ask(body) for body in (JPEG, COSTLY, b"junk")]
    assert statuses(classifier.classify(requests)) == [200, LEFT, 415]
    assert statuses(classifier.classify(requests[1:2])) == [LEFT]
    assert statuses(classifier.answer([classifier.read(requests[1])])) == [200]
    assert counted == [2, 1]


def test_items_that_were_read_apart_get_the_batchs_answers_and_their_times(
    classifier: OffpathClassifier,
) -> None:
    requests = [ask(body) for body in (JPEG, b"junk", PNG)]
    together = classifier.classify(requests)
    apart = classifier.answer([classifier.read(request) for request in requests])
    assert [reply.body for reply in apart] == [reply.body for reply in together]
    seconds = classifier.timings.seconds
    assert seconds[Stage.READ] > 0 and seconds[Stage.DECODE] > 0
    assert classifier.timings.total_s >= sum(seconds.values())
    assert classifier.timings.other_s >= 0


class StandIn:
    """A device that computes a batch until it may answer, while the cores are free."""

    def __init__(self, classifier: OffpathClassifier) -> None:
        self.counts: list[int] = []
        self.may_answer = threading.Event()
        self._run = classifier.pipeline.runner.run

    def __call__(self, count: int, timer: StageTimer) -> TopK:
        self.counts.append(count)
        self.may_answer.wait()
        return self._run(count, timer)


def test_a_batch_is_read_while_the_one_before_computes(
    loading: None, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = OffpathClassifier()
    classifier.initialize(make_context(model_dir, threads=1, read_ahead=True))
    right = [classifier.classify([ask(body)])[0].body for body in (JPEG, PNG)]
    device = StandIn(classifier)
    monkeypatch.setattr(classifier.pipeline.runner, "run", device)
    read: list[object] = []
    make = classifier.pipeline._input_maker.make
    monkeypatch.setattr(
        classifier.pipeline._batch_maker,
        "make",
        lambda payload: (make(payload), read.append(payload))[0],
    )
    with ThreadPoolExecutor(classifier.in_flight) as threads:
        first = threads.submit(classifier.classify, [ask(JPEG)])
        eventually(lambda: device.counts)
        second = threads.submit(classifier.classify, [ask(PNG), ask(b"junk")])
        eventually(lambda: read[1:])
        assert device.counts == [1]
        device.may_answer.set()
        assert [first.result()[0].body, second.result()[0].body] == right
        assert statuses(second.result()) == [200, 415] and device.counts == [1, 1]
    classifier.close()


@pytest.mark.parametrize(
    ("setting", "own_preprocess", "in_flight"),
    [(None, False, 1), (True, False, 2), (True, True, 1)],
)
def test_how_many_batches_are_in_flight_on_a_cpu(
    classifier: OffpathClassifier,
    monkeypatch: pytest.MonkeyPatch,
    setting: bool | None,
    own_preprocess: bool,
    in_flight: int,
) -> None:
    class Own(OffpathClassifier):
        def preprocess(self, requests: Sequence[Request]) -> Batch:
            return super().preprocess(requests)

    tried = Own() if own_preprocess else OffpathClassifier()
    tried.config, tried.device = replace(classifier.config, read_ahead=setting), classifier.device
    assert tried.in_flight == in_flight


@pytest.fixture
def unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets explanations follow each other without a pause."""
    monkeypatch.setattr("offpath.handler.model.explanations.PAUSE_FACTOR", 0.0)


@pytest.mark.usefixtures("unpaused")
def test_explanations_and_predictions_share_a_batch(classifier: OffpathClassifier) -> None:
    (alone,) = classifier.classify([ask(JPEG)])
    bodies = [JPEG, b"junk", {"data": PNG, "target": b"3"}]
    explain = [ask(body, explain="True") for body in bodies]
    replies = classifier.classify([ask(JPEG, explain="1"), *explain])
    assert statuses(replies) == [200, 200, 415, 200]
    # Equal except for rounding: the matrix product of another batch size differs in the last bit.
    assert json.loads(replies[0].body) == pytest.approx(json.loads(alone.body), abs=1e-5)
    for idx in (1, 3):
        attributions = torch.tensor(json.loads(replies[idx].body))
        assert attributions.shape == (3, 224, 224)
        assert attributions.abs().sum() > 0


@guarantee(
    "Explanations",
    "handler/model/explanations.py",
    "functools.cache(lambda: import_module(",
    "(lambda loaded: lambda: loaded)(import_module(",
)
def test_a_closed_explanation_imports_nothing(
    loading: None, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = OffpathClassifier()
    classifier.initialize(make_context(model_dir, threads=1))
    monkeypatch.setitem(sys.modules, "captum.attr", None)  # an import would fail
    requests = [ask(JPEG, explain="True"), ask(PNG)]
    assert statuses(classifier.classify(requests)) == [403, 200]
    classifier.close()


@pytest.mark.parametrize(
    "target",
    [b"1000", b"-1", b"\xff", b"9" * 10_000, "1e3", {"a": 1}],
    ids=lambda target: repr(target)[:12],
)
def test_wrong_target_is_a_400_of_its_item(classifier: OffpathClassifier, target: object) -> None:
    wrong = ask({"body": JPEG, "target": target}, explain="True")
    replies = classifier.classify([wrong, ask(JPEG)])
    assert statuses(replies) == [400, 200]
    assert json.loads(replies[0].body)["type"] == "BadTarget"
    assert len(json.loads(replies[1].body)) == 5


@pytest.fixture
def failing(
    classifier: OffpathClassifier, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Exception | None], None]:
    """Returns a function that makes the model raise an error, or run again with None."""
    run, error = classifier.pipeline.runner.run, None
    classifier._health = ModelHealth()

    def set_error(wanted: Exception | None) -> None:
        nonlocal error
        error = wanted

    def run_or_raise(*args: Any) -> TopK:
        if error is not None:
            raise error
        return run(*args)

    monkeypatch.setattr(classifier.pipeline.runner, "run", run_or_raise)
    return set_error


def test_a_failing_model_gives_each_good_item_a_503_and_raises_nothing(
    classifier: OffpathClassifier, failing: Callable[[Exception | None], None]
) -> None:
    failing(torch.OutOfMemoryError("CUDA out of memory"))
    requests = [ask(body) for body in (JPEG, b"junk", PNG)]
    replies = classifier.classify(requests)
    assert statuses(replies) == [503, 415, 503]
    assert json.loads(replies[0].body)["type"] == "ModelOutOfMemory"
    assert [reply.headers.get("Retry-After") for reply in replies] == ["1", None, "1"]
    failing(None)
    assert statuses(classifier.classify(requests)) == [200, 415, 200]


def test_only_a_batch_that_the_model_answers_interrupts_failures_in_a_row(
    classifier: OffpathClassifier, failing: Callable[[Exception | None], None]
) -> None:
    good, bad = [ask(JPEG)], [ask(b"junk")]
    for requests, error, failures in [
        (good, ValueError("no"), 1),
        (bad, ValueError("no"), 1),
        (good, ValueError("no"), 2),
        (good, None, 0),
    ]:
        failing(error)
        classifier.classify(requests)
        assert classifier._health.failures == failures


@guarantee("Explanations")
@pytest.mark.usefixtures("unpaused")
def test_a_failed_explanation_counts_neither_way(
    classifier: OffpathClassifier,
    failing: Callable[[Exception | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explain(*_: Any) -> Reply:
        raise MemoryError

    monkeypatch.setattr(classifier._explainer, "explain", explain)
    for _ in range(2 * MAX_OUT_OF_MEMORY_IN_A_ROW):
        replies = classifier.classify([ask(JPEG, explain="True"), ask(JPEG)])
        assert statuses(replies) == [503, 200]
    assert classifier.health is None


@guarantee("A broken model on one worker")
def test_only_batches_without_any_finite_answer_replace_a_worker(
    classifier: OffpathClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier._health = ModelHealth()
    runner = classifier.pipeline.runner
    engine, spoiled = runner.engine, 1

    def spoil(images: torch.Tensor) -> torch.Tensor:
        outputs = engine(images)
        outputs[:spoiled] = torch.nan
        return outputs

    monkeypatch.setattr(runner, "engine", spoil)
    requests = [ask(JPEG)] * 2
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        assert statuses(classifier.classify(requests)) == [503, 200]
    assert classifier._health.failures == 0
    spoiled = 2
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert classifier.health is None
        replies = classifier.classify(requests)
    assert [json.loads(reply.body)["type"] for reply in replies] == ["ModelFailed"] * 2
    assert "not finite" in str(classifier.health)


def test_weights_that_are_not_finite_refuse_to_load(model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(model_dir / "near_free.py", tmp_path)
    weights = {key: value * torch.nan for key, value in NearFree().state_dict().items()}
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(FloatingPointError, match="not finite .* check"):
        OffpathClassifier().initialize(make_context(tmp_path, threads=1))
