"""Each engine's files for a tiny model, loaded by the handler's own engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpath.archive.engine_files.engine_folder import (
    EnginePlan,
    build_engine_folder,
)
from offpath.archive.photograph_sets import PhotographSets, load_photographs
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from offpath.handler.model.engines.choose import make_engine
from offpath.handler.model.outputs import keep_one_output
from offpath.handler.model.parity import load_parity_set
from tests.support.photographs import PHOTOGRAPHS, encode

# Not square, and with another order and scale of the channels than the default's.
CONFIG = HandlerConfig(
    **{"image_size": "64x56", "resize_size": 72, "channel_order": "bgr", "pixel_scale": 255},
    **{"mean": (104.0, 117.0, 124.0), "std": (58.0, 57.0, 99.0)},
)
CPU = torch.device("cpu")
# Precision of OpenVINO's graph -> how far a probability may be from eager fp32's.
PRECISIONS = {"fp32": 1e-5, "int8": 0.05}


class Tiny(torch.nn.Module):
    """Three classes; photographs differ in their answers, unlike with fresh random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 5, stride=4)
        self.body = torch.nn.Conv2d(8, 8, 3, stride=2)
        self.head = torch.nn.Linear(8, 3)
        torch.nn.init.orthogonal_(self.head.weight, gain=12)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        planes = torch.relu(self.body(torch.relu(self.stem(images))))
        features = planes.mean(dim=(2, 3))
        return {"features": features, "logits": self.head(features)}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return keep_one_output(Tiny(), "logits").eval()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> PhotographSets:
    folder = tmp_path_factory.mktemp("photographs")
    for index, photograph in enumerate(PHOTOGRAPHS):
        jpeg = encode(photograph.rgb.resize((96, 80)), "JPEG")
        (folder / f"{index:02}.jpg").write_bytes(jpeg)
    return load_photographs(folder, CONFIG)


@pytest.fixture(scope="module", params=PRECISIONS)
def built(
    request: pytest.FixtureRequest,
    model: torch.nn.Module,
    photographs: PhotographSets,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Path]]:
    """A precision, and the folder that was built for it."""
    precision = request.param
    pytest.importorskip("openvino")
    if precision == "int8":
        pytest.importorskip("nncf")
    folder = tmp_path_factory.mktemp("engine") / "engine"
    plan = EnginePlan("openvino", precision)
    build_engine_folder(plan, model, CONFIG, photographs, folder)
    yield precision, folder


def classify(backend: Any, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits = backend(torch.from_numpy(images))
        assert logits.dtype == torch.float32
        return torch.softmax(logits, 1).numpy().copy()


def test_graph_answers_like_eager_for_one_image_and_for_five(
    built: tuple[str, Path], model: torch.nn.Module, photographs: PhotographSets
) -> None:
    precision, folder = built
    tolerance = PRECISIONS[precision]
    graph = make_engine("openvino", precision, model, CONFIG, CPU, folder, 1)
    eager = make_engine("eager", "fp32", model, CONFIG, CPU, None, 1)
    images = photographs.held_out
    expected = classify(eager, images[:5])
    # Or any graph would pass, or one with the colours in another order.
    assert expected.std(axis=0).max() > 0.05
    assert np.abs(classify(eager, images[:5, ..., ::-1].copy()) - expected).max() > 0.01
    for count in (1, 5, 2):
        answers = classify(graph, images[:count])
        assert answers.shape == (count, 3)
        assert np.abs(answers - expected[:count]).max() <= tolerance


def test_parity_file_holds_held_out_photographs_and_eager_answers(
    built: tuple[str, Path], model: torch.nn.Module, photographs: PhotographSets
) -> None:
    parity = load_parity_set(built[1], CONFIG)
    assert parity is not None
    seen = {image.tobytes() for image in photographs.calibration}
    assert 8 <= len(parity.images) <= 16
    assert not seen & {image.tobytes() for image in parity.images}
    eager = make_engine("eager", "fp32", model, CONFIG, CPU, None, 1)
    assert np.allclose(classify(eager, parity.images), parity.probabilities, atol=1e-5)


def test_answers_outside_the_bound_build_nothing(
    model: torch.nn.Module, photographs: PhotographSets, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    strict = replace(CONFIG, parity_bound=0.0)
    plan = EnginePlan("openvino", "fp32")
    with pytest.raises(ExpectedError, match="other answers than eager.*parity_bound"):
        build_engine_folder(plan, model, strict, photographs, tmp_path / "engine")


def test_nothing_reports_use_over_the_network(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    # A process of its own: other tests may have imported what reports.
    script = """
import sys, torch
from pathlib import Path
from offpath.archive.engine_files.exporters import save_for_openvino
program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(2, 2),))
save_for_openvino(program, Path(sys.argv[1]))
print([n for n in sys.modules if n.startswith("openvino_telemetry.")])
"""
    command = [sys.executable, "-c", script, tmp_path / "model.xml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
