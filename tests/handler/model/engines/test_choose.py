from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.model.engines import choose
from offpath.handler.model.engines.choose import Choice, choose_engine
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.engines.engine import PARITY_FILE
from tests.support.photographs import PHOTOGRAPHS

CPU = torch.device("cpu")
SIZE = 32


class Small(torch.nn.Module):
    """Ten classes by colour and edges; weights large enough that photographs differ."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.last = torch.nn.Linear(8, 10)
        with torch.no_grad():
            self.last.weight.mul_(10)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(batch).relu().mean((2, 3)))


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


def settings(**values: object) -> HandlerConfig:
    return HandlerConfig.from_mapping({"image_size": SIZE, "resize_size": SIZE, **values}, {})


def choose_from(folder: Path | None, **values: object) -> Choice:
    return choose_engine(Small().eval(), settings(**values), CPU, folder, threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with photographs and the model's answers."""
    images = np.stack([np.asarray(p.rgb.resize((SIZE, SIZE))) for p in PHOTOGRAPHS])
    engine = EagerEngine(Small().eval(), settings(), CPU)
    answers = torch.softmax(engine(torch.from_numpy(images)), 1)
    np.savez(tmp_path / PARITY_FILE, images=images, probabilities=answers.numpy())
    return tmp_path


@pytest.fixture
def choose_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Choice]:
    """Chooses an engine for an archive whose graph answers like the given model."""

    def choose_graph(model: torch.nn.Module) -> Choice:
        graph = EagerEngine(model.eval(), settings(), CPU)
        graph.name = "openvino"
        monkeypatch.setattr(choose, "make_engine", lambda *_: graph)
        return choose_from(folder, engine="openvino", precision="fp32")

    return choose_graph


def test_auto_without_artefacts_is_the_model_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (None, folder):
        choice = choose_from(place, precision="fp32")
        assert (choice.engine.name, choice.engine.precision) == ("eager", "fp32")
        assert choice.parity is None
    assert caplog.text == ""
    # No other engine has this precision, so a worker runs another than it was asked for.
    assert choose_from(folder, precision="int8").engine.precision == "fp32"
    assert "has no engine/model.int8.xml" in caplog.text


def test_graph_with_equal_predictions_is_used(choose_with: Callable[..., Choice]) -> None:
    choice = choose_with(Small())
    assert choice.engine.name == "openvino"
    assert choice.parity is not None
    assert choice.parity.holds(1e-5)
    assert choice.parity.images == len(PHOTOGRAPHS)
    assert choice.refused == choice.lost == ()


@pytest.mark.parametrize("engine", ["auto", "openvino"])
@pytest.mark.parametrize("is_right_in_fp32", [True, False])
def test_an_engine_that_fails_the_gate_is_tried_in_fp32_before_eager(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: str,
    is_right_in_fp32: bool,
) -> None:
    tried = []

    def make_engine(name: str, precision: str, *_: object) -> EagerEngine:
        tried.append((name, precision))
        is_right = precision == "fp32" and (is_right_in_fp32 or name == "eager")
        made = EagerEngine(Small(0 if is_right else 1).eval(), settings(), CPU)
        made.name, made.precision = name, precision
        return made

    monkeypatch.setattr(choose, "make_engine", make_engine)
    monkeypatch.setattr(choose, "choose_precision", lambda device: "bf16")
    with caplog.at_level(logging.WARNING):
        choice = choose_from(folder, engine=engine)
    assert tried[:2] == [("openvino", "bf16"), ("openvino", "fp32")]
    wanted = "openvino" if is_right_in_fp32 else "eager"
    assert (choice.engine.name, choice.engine.precision) == (wanted, "fp32")
    assert "openvino bf16 is not used" in choice.lost[0] and choice.lost[0] in caplog.text
    assert choice.describe()["engines_lost"] == list(choice.lost)


def test_an_engine_of_the_archive_without_its_package_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose_from(folder, precision="fp32")
    assert len(choice.refused) == 1 and choice.lost == ()
    (folder / "model.fp32.xml").touch()
    monkeypatch.setitem(sys.modules, "openvino", None)
    choice = choose_from(folder, precision="fp32")
    assert choice.engine.name == "eager" and len(choice.lost) == 1


def test_engine_that_answers_nan_is_refused(choose_with: Callable[..., Choice]) -> None:
    model = Small()
    model.last.bias.data.fill_(torch.nan)
    assert choose_with(model).engine.name == "eager"


def test_automatic_lower_precision_needs_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choose, "choose_precision", lambda device: "bf16")
    choice = choose_from(tmp_path)
    assert (choice.engine.name, choice.engine.precision) == ("eager", "fp32")
    assert "no photographs" in caplog.text
    asked = choose_from(tmp_path, precision="bf16")
    assert asked.engine.precision == "bf16"
