from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ts.context import Context, RequestProcessor

from offpath.archive.models.near_free import NearFree
from offpath.handler.classifier import OffpathClassifier
from offpath.handler.errors import ConfigError
from offpath.handler.image.decode import DecodeOptions
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.nvjpeg import DeviceDecoder
from offpath.handler.model.batch_runner import TopK
from offpath.handler.process import host_limits
from offpath.handler.process.host_limits import threads_per_worker
from offpath.handler.process.sick_worker import (
    MOST_FAILURES_IN_A_ROW,
    MOST_OUT_OF_MEMORY_IN_A_ROW,
    ModelHealth,
)
from offpath.handler.request.npy import read_npy
from offpath.handler.response import Reply
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.client import make_npy, parse_server_timing
from tests.handler.conftest import make_context
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")
PNG = encode(find_photograph("chelsea").rgb, "PNG")


def request(context: Context, *headers: dict[str, str]) -> Context:
    """Sets the headers of the next batch, one mapping per item."""
    context.request_processor = [RequestProcessor(dict(one)) for one in headers]
    context.request_ids = {idx: f"request-{idx}" for idx in range(len(headers))}
    return context


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


PAIR = """
from near_free import NearFree


class Pair(NearFree):
    def forward(self, images):
        logits = super().forward(images)
        return logits.flip(1), logits
"""


@pytest.mark.usefixtures("unpaused")
def test_chosen_output_is_predicted_and_explained(
    classifier: OffpathClassifier,
    context: Context,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(model_dir))
    (model_dir / "pair.py").write_text(PAIR)
    settings = {"threads": 1, "metrics_interval_s": 3600, "explanations": True}
    of_pair = make_context(model_dir, output=1, **settings)
    of_pair.manifest["model"]["modelFile"] = "pair.py"
    pair = OffpathClassifier()
    pair.initialize(of_pair)
    pair._metrics.stop()
    rows = [{"body": JPEG}, {"body": JPEG, "target": b" 7 "}, {"body": JPEG}]
    headers = [{}, {"explain": "True"}, {"explain": "True"}]
    expected = classifier.handle(rows, request(context, *headers))
    assert expected[1] != expected[2]  # class 7 and class 0
    assert pair.handle(rows, request(of_pair, *headers)) == expected


def status(context: Context, idx: int) -> int:
    return int(context.get_response_status(idx)[0])


def test_batch_is_answered_with_labels_statuses_and_headers(
    classifier: OffpathClassifier, context: Context
) -> None:
    bodies = classifier.handle(
        [{"body": JPEG}, {"data": PNG}, {"body": b"junk"}], request(context, {}, {}, {})
    )
    assert [status(context, idx) for idx in range(3)] == [200, 200, 415]
    assert len(json.loads(bodies[0])) == 5
    assert json.loads(bodies[0]) != json.loads(bodies[1])
    assert json.loads(bodies[2])["type"] == "UnsupportedFormat"
    for idx in range(3):
        assert isinstance(bodies[idx], bytes) and bodies[idx].isascii()
        assert context.get_response_status(idx)[1].isascii()
        headers = context.get_response_headers(idx)
        assert all(isinstance(v, str) and v.isascii() for v in headers.values())
        assert headers["content-type"] == "application/json"
        timings = parse_server_timing(headers["Server-Timing"])
        stages = sum(ms for name, ms in timings.items() if name != "total")
        assert 0 < timings["decode"] < stages <= timings["total"] + 0.1


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
        [{"body": PNG}, {"body": JPEG}, {}], request(context, late, {}, describe)
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
    alone = classifier.handle([{"body": JPEG}], request(context, {}))
    bodies = classifier.handle(
        [
            {"body": JPEG},
            {"body": JPEG},
            {"body": b"junk"},
            {"data": PNG, "target": b"3"},
        ],
        request(context, {"explain": "1"}, explain, explain, explain),
    )
    assert [status(context, idx) for idx in range(4)] == [200, 200, 415, 200]
    # Equal except for rounding: the matrix product of another batch size differs in the last bit.
    assert json.loads(bodies[0]) == pytest.approx(json.loads(alone[0]), abs=1e-5)
    for idx in (1, 3):
        attributions = torch.tensor(json.loads(bodies[idx]))
        assert attributions.shape == (3, 224, 224)
        assert attributions.abs().sum() > 0


TALL_NET = """
import torch
class TallNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 4)
    def forward(self, images):
        assert images.shape[1:] == (3, 96, 64)
        return self.head(images.mean(dim=(2, 3)))
"""


@pytest.mark.usefixtures("unpaused")
def test_a_rectangle_of_blue_first_pixels_is_answered_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tall_net.py").write_text(TALL_NET)
    weights = {"head.weight": torch.randn(4, 3) / 30, "head.bias": torch.zeros(4)}
    torch.save(weights, tmp_path / "weights.pt")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"image_size": "96x64", "resize": "stretch", "channel_order": "bgr"}
    numbers = {"pixel_scale": 255, "mean": [104, 117, 124], "std": 1}
    context = make_context(tmp_path, explanations=True, **settings, **numbers)
    context.manifest["model"]["modelFile"] = "tall_net.py"
    tall = OffpathClassifier()
    tall.initialize(context)
    payload = make_npy(JPEG, tall.config.input_geometry)
    pixels = read_npy(payload, (96, 64, 3)).astype("f4").mean(axis=(0, 1))
    blue_first = torch.tensor(pixels[::-1] - [104, 117, 124], dtype=torch.float32)
    expected = torch.softmax(weights["head.weight"] @ blue_first, 0)
    rows = [{"body": payload}, {"body": JPEG}, {"body": JPEG}]
    thin, full, why = map(
        json.loads, tall.handle(rows, request(context, {}, {}, {"explain": "True"}))
    )
    tall.close()
    for answer in (thin, full):
        got = torch.tensor([answer[str(index)] for index in range(4)])
        torch.testing.assert_close(got, expected, atol=0.01, rtol=0)
    assert torch.tensor(why).shape == (3, 96, 64)
    assert tall.describe_handle()["image_size"] == "96x64"


@pytest.mark.parametrize(
    "target",
    [b"1000", b"-1", b"cat", b"1.5", b"\xff", b"9" * 10_000, "1e3", [1], {"a": 1}],
    ids=lambda target: repr(target)[:12],
)
def test_wrong_target_is_a_400_of_its_item(
    classifier: OffpathClassifier, context: Context, target: object
) -> None:
    for value in (target, bytearray(target) if isinstance(target, bytes) else target):
        bodies = classifier.handle(
            [{"body": JPEG, "target": value}, {"body": JPEG}],
            request(context, {"explain": "True"}, {}),
        )
        assert [status(context, idx) for idx in range(2)] == [400, 200]
        assert json.loads(bodies[0])["type"] == "BadTarget"
        assert len(json.loads(bodies[1])) == 5


@pytest.mark.parametrize("body", [b"", b"junk"])
def test_a_client_that_asks_to_describe_a_prediction_gets_its_answer(
    classifier: OffpathClassifier, context: Context, body: bytes
) -> None:
    bodies = classifier.handle(
        [{"body": body}, {"body": JPEG}],
        request(context, {"describe": "True"}, {"describe": "True"}),
    )
    assert status(context, 0) in (400, 415)
    assert len(json.loads(bodies[1])) == 5


def test_one_explanation_of_a_batch_is_made_and_others_get_429(
    classifier: OffpathClassifier, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier.__dict__.pop("_explainer", None)
    explain = {"explain": "True"}
    rows = [{"body": JPEG}] * 4
    bodies = classifier.handle(rows, request(context, explain, explain, explain, {}))
    assert [status(context, idx) for idx in range(4)] == [200, 429, 429, 200]
    assert json.loads(bodies[1])["type"] == "TooManyExplanations"


def errors_counted(classifier: OffpathClassifier) -> float:
    sums = classifier._metrics._sums
    return sum(n for (name, _), n in sums.items() if name == "offpath_errors_total")


def test_description_leaves_its_neighbours_their_predictions(
    classifier: OffpathClassifier, context: Context
) -> None:
    alone = classifier.handle([{"body": JPEG}], request(context, {}))
    before = errors_counted(classifier)
    bodies = classifier.handle([{}, {"body": JPEG}], request(context, {"describe": "True"}, {}))
    described = json.loads(bodies[0])
    assert described["handler"] == "offpath"
    assert (described["classes"], described["image_size"]) == (1000, 224)
    assert [status(context, idx) for idx in range(2)] == [200, 200]
    assert errors_counted(classifier) == before
    assert bodies[1] == alone[0]


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
    bodies = classifier.handle(rows, request(context, {}, {}, {}))
    assert [status(context, idx) for idx in range(3)] == [503, 415, 503]
    assert json.loads(bodies[0])["type"] == "ModelOutOfMemory"
    headers = [context.get_response_headers(idx) for idx in range(3)]
    assert [one.get("Retry-After") for one in headers] == ["1", None, "1"]
    failing(None)
    classifier.handle(rows, request(context, {}, {}, {}))
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
        classifier.handle(rows, request(context, {}))
        assert classifier.health.failures == failures


@pytest.mark.usefixtures("unpaused")
def test_a_description_or_a_failed_explanation_counts_neither_way(
    classifier: OffpathClassifier,
    context: Context,
    failing: Callable[[Exception | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(ValueError("no"))
    classifier.handle([{"body": JPEG}], request(context, {}))
    classifier.handle([{}], request(context, {"describe": "True"}))
    assert classifier.health.failures == 1
    failing(None)

    def explain(*_: Any) -> Reply:
        raise MemoryError

    monkeypatch.setattr(classifier._explainer, "explain_item", explain)
    for _ in range(2 * MOST_OUT_OF_MEMORY_IN_A_ROW):
        classifier.handle([{"body": JPEG}] * 2, request(context, {"explain": "True"}, {}))
        assert [status(context, idx) for idx in range(2)] == [503, 200]
    assert classifier.health.diagnosis is None


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
    for _ in range(2 * MOST_FAILURES_IN_A_ROW):
        classifier.handle(rows, request(context, {}, {}))
        assert [status(context, idx) for idx in range(2)] == [503, 200]
    assert classifier.health.failures == 0
    spoiled = 2
    for _ in range(MOST_FAILURES_IN_A_ROW):
        assert classifier.health.diagnosis is None
        bodies = classifier.handle(rows, request(context, {}, {}))
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


@pytest.mark.parametrize(
    ("error", "batches"),
    [
        pytest.param(
            *(torch.AcceleratorError("CUDA error: an illegal memory access\nmore"), 1),
            id="sticky",
        ),
        pytest.param(
            *(MemoryError("illegal memory access"), MOST_OUT_OF_MEMORY_IN_A_ROW),
            id="out-of-memory",
        ),
    ],
)
def test_a_sick_model_is_said_once_and_counted_once(
    classifier: OffpathClassifier,
    context: Context,
    failing: Callable[[Exception | None], None],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    batches: int,
) -> None:
    failing(error)
    for _ in range(batches + 2):  # another server goes on sending batches
        classifier.handle([{"body": JPEG}], request(context, {}))
        assert status(context, 0) == 503
    lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(lines) == 1 and "illegal memory access" in lines[0]


def test_answered_requests_cause_no_line_on_the_log(
    classifier: OffpathClassifier,
    context: Context,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.DEBUG):
        classifier.handle([{"body": JPEG}, {"body": b"junk"}], request(context, {}, {}))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_server_timing_can_be_switched_off(
    classifier: OffpathClassifier, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = dataclasses.replace(classifier.config, server_timing=False)
    monkeypatch.setattr(classifier, "config", quiet)
    classifier.handle([{"body": JPEG}], request(context, {}))
    assert "Server-Timing" not in context.get_response_headers(0)


def test_wrong_setting_refuses_to_load_and_names_it(model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="handler.top_k is 0; accepted: "):
        OffpathClassifier().initialize(make_context(model_dir, top_k=0))


@pytest.mark.parametrize(
    ("settings", "cores", "threads"),
    [
        ({"minWorkers": 1, "maxWorkers": 4}, 16, 4),
        ({"minWorkers": 2}, 16, 8),
        ({}, 16, 16),
        ({"maxWorkers": 0}, 16, 16),
        ({"maxWorkers": 8}, 2, 1),
    ],
    ids=str,
)
def test_threads_are_cores_divided_by_workers(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], cores: int, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(host_limits, "CPU_LIMIT", Path("/no limit"))
    workers = ServingSettings.from_mapping(settings).workers
    assert threads_per_worker(workers) == threads


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 64),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 64),
    ],
)
def test_container_limit_bounds_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(host_limits, "CPU_LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert host_limits.count_cores() == cores


def test_images_that_the_device_had_no_memory_for_are_answered_and_counted(
    classifier: OffpathClassifier, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(files: list[torch.Tensor]) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    decoder = DeviceDecoder(decode, DecodeOptions(), InputGeometry())
    monkeypatch.setattr(classifier.pipeline, "_device_decoder", decoder)
    before = dict(classifier._metrics._sums)
    classifier.handle([{"body": JPEG}, {"body": JPEG}], request(context, {}, {}))
    assert [status(context, idx) for idx in range(2)] == [200, 200]
    counter = ("offpath_gpu_decode_out_of_memory_total", ())
    assert classifier._metrics._sums[counter] == before.get(counter, 0) + 2
