from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ts.context import Context

from offpath.archive.models.near_free import NearFree
from offpath.handler.classifier import OffpathClassifier
from offpath.handler.model.batch_runner import TopK
from offpath.handler.process.sick_worker import (
    MAX_FAILURES_IN_A_ROW,
    MAX_OUT_OF_MEMORY_IN_A_ROW,
    ModelHealth,
)
from offpath.handler.response import EncodedReply
from tests.handler.conftest import make_context, set_requests
from tests.support.guarantees import guarantee
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")
PNG = encode(find_photograph("chelsea").rgb, "PNG")


@pytest.fixture(scope="module", autouse=True)
def keep_logging_and_threads() -> Iterator[None]:
    level, threads = logging.getLogger().level, torch.get_num_threads()
    yield
    logging.getLogger().setLevel(level)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def context(model_dir: Path) -> Context:
    return make_context(model_dir, metrics_interval_s=3600, threads=1, explanations=True)


@pytest.fixture(scope="module")
def classifier(
    context: Context, keep_logging_and_threads: None, model_dir: Path
) -> Iterator[OffpathClassifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OFFPATH_PREDICTION_LOG", raising=False)
        patch.syspath_prepend(str(model_dir))
        loaded = OffpathClassifier()
        loaded.initialize(context)
    yield loaded
    loaded._metrics.stop()


def status(context: Context, idx: int) -> int:
    return int(context.get_response_status(idx)[0])


def test_a_late_request_gets_504_undecoded_and_its_neighbour_is_answered(
    classifier: OffpathClassifier, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    make = classifier.pipeline._input_maker.make
    monkeypatch.setattr(
        classifier.pipeline._input_maker,
        "make",
        lambda payload: decoded.append(payload) or make(payload),
    )
    late = {"x-request-timeout-ms": "1000", "x-request-start": "t=1700000000.0"}
    describe = {**late, "describe": "True"}
    bodies = classifier.handle(
        [{"body": PNG}, {"body": JPEG}, {}], set_requests(context, late, {}, describe)
    )
    assert [status(context, idx) for idx in range(3)] == [504, 200, 200]
    assert json.loads(bodies[0])["type"] == "DeadlineExceeded"
    assert json.loads(bodies[2])["handler"] == "offpath"
    assert decoded == [JPEG]


@pytest.fixture
def unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets explanations follow each other without a pause."""
    monkeypatch.setattr("offpath.handler.model.explanations.PAUSE_FACTOR", 0.0)


@pytest.mark.usefixtures("unpaused")
def test_explanations_and_predictions_share_a_batch(
    classifier: OffpathClassifier, context: Context
) -> None:
    explain = {"explain": "True"}
    alone = classifier.handle([{"body": JPEG}], set_requests(context, {}))
    bodies = classifier.handle(
        [
            {"body": JPEG},
            {"body": JPEG},
            {"body": b"junk"},
            {"data": PNG, "target": b"3"},
        ],
        set_requests(context, {"explain": "1"}, explain, explain, explain),
    )
    assert [status(context, idx) for idx in range(4)] == [200, 200, 415, 200]
    # Equal except for rounding: the matrix product of another batch size differs in the last bit.
    assert json.loads(bodies[0]) == pytest.approx(json.loads(alone[0]), abs=1e-5)
    for idx in (1, 3):
        attributions = torch.tensor(json.loads(bodies[idx]))
        assert attributions.shape == (3, 224, 224)
        assert attributions.abs().sum() > 0


@pytest.mark.parametrize(
    "target",
    [b"1000", b"-1", b"\xff", b"9" * 10_000, "1e3", {"a": 1}],
    ids=lambda target: repr(target)[:12],
)
def test_wrong_target_is_a_400_of_its_item(
    classifier: OffpathClassifier, context: Context, target: object
) -> None:
    bodies = classifier.handle(
        [{"body": JPEG, "target": target}, {"body": JPEG}],
        set_requests(context, {"explain": "True"}, {}),
    )
    assert [status(context, idx) for idx in range(2)] == [400, 200]
    assert json.loads(bodies[0])["type"] == "BadTarget"
    assert len(json.loads(bodies[1])) == 5


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize("body", [b"", b"junk"])
def test_a_client_that_asks_to_describe_a_prediction_gets_its_answer(
    classifier: OffpathClassifier, context: Context, body: bytes
) -> None:
    bodies = classifier.handle(
        [{"body": body}, {"body": JPEG}],
        set_requests(context, {"describe": "True"}, {"describe": "True"}),
    )
    assert status(context, 0) in (400, 415)
    assert len(json.loads(bodies[1])) == 5


@pytest.fixture
def failing(
    classifier: OffpathClassifier, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Exception | None], None]:
    """Returns a function that makes the model raise an error, or run again with None."""
    run, error = classifier.pipeline.runner.run, None
    classifier.health = ModelHealth()

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
    classifier: OffpathClassifier, context: Context, failing: Callable[[Exception | None], None]
) -> None:
    failing(torch.OutOfMemoryError("CUDA out of memory"))
    rows = [{"body": JPEG}, {"body": b"junk"}, {"body": PNG}]
    bodies = classifier.handle(rows, set_requests(context, {}, {}, {}))
    assert [status(context, idx) for idx in range(3)] == [503, 415, 503]
    assert json.loads(bodies[0])["type"] == "ModelOutOfMemory"
    headers = [context.get_response_headers(idx) for idx in range(3)]
    assert [one.get("Retry-After") for one in headers] == ["1", None, "1"]
    failing(None)
    classifier.handle(rows, set_requests(context, {}, {}, {}))
    assert [status(context, idx) for idx in range(3)] == [200, 415, 200]


def test_only_a_batch_that_the_model_answers_interrupts_failures_in_a_row(
    classifier: OffpathClassifier, context: Context, failing: Callable[[Exception | None], None]
) -> None:
    good, bad = [{"body": JPEG}], [{"body": b"junk"}]
    for rows, error, failures in [
        (good, ValueError("no"), 1),
        (bad, ValueError("no"), 1),
        (good, ValueError("no"), 2),
        (good, None, 0),
    ]:
        failing(error)
        classifier.handle(rows, set_requests(context, {}))
        assert classifier.health.failures == failures


@guarantee("Explanations")
@pytest.mark.usefixtures("unpaused")
def test_a_description_or_a_failed_explanation_counts_neither_way(
    classifier: OffpathClassifier,
    context: Context,
    failing: Callable[[Exception | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(ValueError("no"))
    classifier.handle([{"body": JPEG}], set_requests(context, {}))
    classifier.handle([{}], set_requests(context, {"describe": "True"}))
    assert classifier.health.failures == 1
    failing(None)

    def explain(*_: Any) -> EncodedReply:
        raise MemoryError

    monkeypatch.setattr(classifier._explainer, "explain_item", explain)
    for _ in range(2 * MAX_OUT_OF_MEMORY_IN_A_ROW):
        classifier.handle([{"body": JPEG}] * 2, set_requests(context, {"explain": "True"}, {}))
        assert [status(context, idx) for idx in range(2)] == [503, 200]
    assert classifier.health.diagnosis is None


@guarantee("A broken model on one worker")
def test_only_batches_without_any_finite_answer_replace_a_worker(
    classifier: OffpathClassifier, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier.health = ModelHealth()
    runner = classifier.pipeline.runner
    engine, spoiled = runner.engine, 1

    def spoil(images: torch.Tensor) -> torch.Tensor:
        outputs = engine(images)
        outputs[:spoiled] = torch.nan
        return outputs

    monkeypatch.setattr(runner, "engine", spoil)
    rows = [{"body": JPEG}] * 2
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        classifier.handle(rows, set_requests(context, {}, {}))
        assert [status(context, idx) for idx in range(2)] == [503, 200]
    assert classifier.health.failures == 0
    spoiled = 2
    for _ in range(MAX_FAILURES_IN_A_ROW):
        assert classifier.health.diagnosis is None
        bodies = classifier.handle(rows, set_requests(context, {}, {}))
    assert [json.loads(body)["type"] for body in bodies] == ["ModelFailed"] * 2
    assert "not finite" in str(classifier.health.diagnosis)


def test_weights_that_are_not_finite_refuse_to_load(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(model_dir))
    shutil.copy(model_dir / "near_free.py", tmp_path)
    weights = {key: value * torch.nan for key, value in NearFree().state_dict().items()}
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(FloatingPointError, match="not finite .* check"):
        OffpathClassifier().initialize(make_context(tmp_path, threads=1))
