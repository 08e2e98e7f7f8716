"""Each engine's files for a tiny model, loaded by the handler's own back ends."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpath.archive.engines import artefacts
from offpath.archive.engines.artefacts import (
    EngineBuild,
    build_engine_folder,
    count_flop,
    plan_engine,
)
from offpath.archive.engines.calibration import load_photographs
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ExpectedError
from offpath.handler.image.geometry import Square
from offpath.handler.model.engines.choose import make_backend
from offpath.handler.model.parity import load_parity_set
from tests.support.photographs import PHOTOGRAPHS, encode

CONFIG = HandlerConfig(image_size=64, resize_size=72)
CPU = torch.device("cpu")
# Variant -> files, how far a probability may be from eager fp32's.
VARIANTS = {
    ("compiled", "fp32"): (["model.fp32.pt2"], 1e-5),
    ("onnxruntime", "fp32"): (["model.fp32.onnx"], 1e-5),
    ("onnxruntime", "int8"): (["model.int8.onnx"], 0.05),
    ("openvino", "fp32"): (["model.fp32.bin", "model.fp32.xml"], 1e-5),
    ("openvino", "int8"): (["model.int8.bin", "model.int8.xml"], 0.05),
}
MODULES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
# The C++ compiler takes a quarter of a minute.
PARAMS = [
    pytest.param(
        key, marks=pytest.mark.slow if key[0] == "compiled" else (), id=" ".join(key)
    )
    for key in VARIANTS
]


class Tiny(torch.nn.Module):
    """Three classes; photographs differ in their answers, unlike with fresh random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 5, stride=4)
        self.body = torch.nn.Conv2d(8, 8, 3, stride=2)
        self.head = torch.nn.Linear(8, 3)
        torch.nn.init.orthogonal_(self.head.weight, gain=12)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        planes = torch.relu(self.body(torch.relu(self.stem(pictures))))
        return self.head(planes.mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for index, photograph in enumerate(PHOTOGRAPHS):
        jpeg = encode(photograph.rgb.resize((96, 80)), "JPEG")
        (folder / f"{index:02}.jpg").write_bytes(jpeg)
    return folder


@pytest.fixture(scope="module", params=PARAMS)
def built(
    request: pytest.FixtureRequest,
    model: torch.nn.Module,
    photographs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, str, Path]]:
    """Engine, precision and the folder that was built for them."""
    engine, precision = request.param
    if engine in MODULES:
        pytest.importorskip(MODULES[engine])
    if precision == "int8":
        pytest.importorskip("nncf")
    folder = tmp_path_factory.mktemp("engine") / "engine"
    build = EngineBuild(engine, precision, calibrate=photographs)
    build_engine_folder(build, model, CONFIG, folder)
    yield engine, precision, folder


def classify(backend: Any, pictures: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits = backend(torch.from_numpy(pictures))
        assert logits.dtype == torch.float32
        return torch.softmax(logits, 1).numpy().copy()


def test_graph_answers_like_eager_for_one_picture_and_for_five(
    built: tuple[str, str, Path], model: torch.nn.Module, photographs: Path
) -> None:
    engine, precision, folder = built
    files, tolerance = VARIANTS[engine, precision]
    assert sorted(f.name for f in folder.iterdir()) == [*files, "parity.npz"]
    graph = make_backend(engine, precision, model, CONFIG, CPU, folder, 1)
    eager = make_backend("eager", "fp32", model, CONFIG, CPU, None, 1)
    pictures = load_photographs(photographs, CONFIG).held_out
    expected = classify(eager, pictures[:5])
    assert expected.std(axis=0).max() > 0.05  # or any graph would pass
    for count in (1, 5, 2):
        answers = classify(graph, pictures[:count])
        assert answers.shape == (count, 3)
        assert np.abs(answers - expected[:count]).max() <= tolerance


def test_parity_file_holds_held_out_photographs_and_eager_answers(
    built: tuple[str, str, Path], model: torch.nn.Module, photographs: Path
) -> None:
    parity = load_parity_set(built[2] / "parity.npz", CONFIG.image_size)
    sets = load_photographs(photographs, CONFIG)
    seen = {picture.tobytes() for picture in sets.calibration}
    assert 8 <= len(parity.pictures) <= 16
    assert not seen & {picture.tobytes() for picture in parity.pictures}
    eager = make_backend("eager", "fp32", model, CONFIG, CPU, None, 1)
    assert np.allclose(
        classify(eager, parity.pictures), parity.probabilities, atol=1e-5
    )


def test_graph_names_no_path_of_the_machine_that_built_it(
    built: tuple[str, str, Path],
) -> None:
    if built[0] == "compiled":
        pytest.skip("machine code holds the compiler's notes")
    for file in built[2].iterdir():
        content = file.read_bytes()
        assert str(Path(__file__).parents[2]).encode() not in content
        assert str(Path(torch.__file__).parent).encode() not in content


@pytest.mark.parametrize(
    ("engine", "precision", "files"),
    [("eager", "fp32", []), ("eager", "auto", ["parity.npz"])],
)
def test_eager_needs_photographs_only_where_it_may_lower_precision(
    model: torch.nn.Module,
    photographs: Path,
    tmp_path: Path,
    engine: str,
    precision: str,
    files: list[str],
) -> None:
    folder = tmp_path / "engine"
    build_engine_folder(
        EngineBuild(engine, precision, calibrate=photographs), model, CONFIG, folder
    )
    assert [f.name for f in folder.iterdir()] if files else not folder.exists()


def test_answers_outside_the_bound_build_nothing(
    model: torch.nn.Module, photographs: Path, tmp_path: Path
) -> None:
    strict = HandlerConfig(image_size=64, resize_size=72, parity_bound=0.0)
    build = EngineBuild("openvino", "fp32", calibrate=photographs)
    with pytest.raises(ExpectedError, match="otherwise than eager fp32.*parity_bound"):
        build_engine_folder(build, model, strict, tmp_path / "engine")


def test_int8_outside_the_bound_says_what_was_reached(
    model: torch.nn.Module, photographs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nncf")
    strict = HandlerConfig(image_size=64, resize_size=72, parity_bound=0.0)
    build = EngineBuild("openvino", "int8", calibrate=photographs)
    said: list[str] = []
    with pytest.raises(ExpectedError, match="at best it moved a probability by 0.0"):
        build_engine_folder(build, model, strict, tmp_path / "engine", said.append)
    assert [line.split(":")[0] for line in said] == [
        "int8 with 0 of 3 layers in fp32",
        "int8 with 2 of 3 layers in fp32",
    ]


@pytest.mark.parametrize(
    ("build", "blocked", "message"),
    [
        (
            EngineBuild("openvino", "fp32"),
            "openvino",
            r"torchserve-offpath\[openvino\]",
        ),
        (EngineBuild("openvino", "int8"), "nncf", r"torchserve-offpath\[int8\]"),
        (EngineBuild("onnxruntime", "fp32"), "onnx", r"offpath\[onnxruntime\]"),
        (EngineBuild("onnxruntime", "fp32"), "onnxscript", r"offpath\[onnxruntime\]"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\\" not in value else "",
)
def test_missing_package_is_named_with_its_extra(
    model: torch.nn.Module,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: EngineBuild,
    blocked: str,
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, blocked, None)
    build = EngineBuild(build.engine, build.precision, calibrate=photographs)
    with pytest.raises(
        ExpectedError, match=f"{blocked}, which .* needs, is not installed.*{message}"
    ):
        build_engine_folder(build, model, CONFIG, tmp_path / "engine")


def test_missing_compiler_is_said(
    model: torch.nn.Module,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpp_builder = importlib.import_module("torch._inductor.cpp_builder")
    monkeypatch.setattr(cpp_builder.config.cpp, "cxx", ("no-such-compiler",))
    build = EngineBuild("compiled", "fp32", calibrate=photographs)
    with pytest.raises(ExpectedError, match="needs a C.. compiler.*install g"):
        build_engine_folder(build, model, CONFIG, tmp_path / "engine")


def test_without_photographs_of_packages_the_bundled_ones_check_all_but_int8(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpath.archive.photographs.SOURCES", (("skimage", "none"),))
    with pytest.raises(ExpectedError, match=r"offpath\[bench\].*--calibrate FOLDER"):
        build = EngineBuild("openvino", "int8")
        build_engine_folder(build, model, CONFIG, tmp_path / "int8")
    said: list[str] = []
    build = EngineBuild("onnxruntime", "fp32")
    build_engine_folder(build, model, CONFIG, tmp_path / "fp32", said.append)
    assert "engine onnxruntime fp32: on 16 photographs" in said[0]
    # Without these a worker would refuse the engine and run eager fp32.
    assert (tmp_path / "fp32" / "parity.npz").is_file()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_model_is_run_by_eager_alone(
    model: torch.nn.Module, photographs: Path, tmp_path: Path
) -> None:
    script = torch.jit.trace(model, torch.zeros(1, 3, 64, 64))
    build = EngineBuild("eager", "auto", calibrate=photographs)
    build_engine_folder(build, script, CONFIG, tmp_path / "eager")
    assert (tmp_path / "eager" / "parity.npz").is_file()
    build = EngineBuild("openvino", "fp32", calibrate=photographs)
    with pytest.raises(ExpectedError, match="cannot be made from TorchScript"):
        build_engine_folder(build, script, CONFIG, tmp_path / "ov")


@pytest.mark.parametrize(
    ("handler", "device_type", "resolved", "written"),
    [
        ({"engine": "compiled"}, "cpu", ("compiled", "fp32"), "fp32"),
        ({"engine": "compiled"}, "gpu", ("compiled", "fp16"), "fp16"),
        ({"engine": "onnxruntime"}, "gpu", ("onnxruntime", "fp32"), "fp32"),
        ({"engine": "tensorrt"}, "gpu", ("tensorrt", "fp16"), "fp16"),
        ({"engine": "openvino"}, "cpu", ("openvino", "auto"), None),
        ({"engine": "eager"}, "gpu", ("eager", "auto"), None),
        ({"precision": "int8"}, "cpu", ("openvino", "int8"), "int8"),
        # A few thousand operations: nothing gains.
        ({}, "cpu", ("eager", "auto"), None),
        ({}, "gpu", ("eager", "auto"), None),
    ],
)
def test_what_is_left_open_is_decided_when_the_archive_is_built(
    model: torch.nn.Module,
    handler: dict[str, Any],
    device_type: str,
    resolved: tuple[str, str],
    written: str | None,
) -> None:
    config = {"handler": {"image_size": 64, **handler}, "deviceType": device_type}
    build = plan_engine(config, model, None)
    assert (build.engine, build.precision) == resolved
    assert config["handler"].get("precision") == written
    assert config["handler"].get("engine") == handler.get("engine")


@pytest.mark.parametrize("is_installed", [True, False])
def test_heavy_model_goes_to_openvino_where_it_is_installed(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(artefacts, "HEAVY_FLOP", count_flop(model, Square(64)))
    found = object() if is_installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    build = plan_engine({"handler": {"image_size": 64}}, model, None)
    assert build.engine == ("openvino" if is_installed else "eager")
    build = plan_engine(
        {"handler": {"image_size": 64}, "deviceType": "gpu"}, model, None
    )
    assert build.engine == "eager"


@pytest.mark.parametrize(
    ("handler", "device_type", "message"),
    [
        ({"engine": "openvino"}, "gpu", "runs on the CPU.*--preset cpu"),
        ({"engine": "tensorrt"}, "cpu", "needs a CUDA device.*--preset t4"),
    ],
)
def test_engine_that_the_device_rules_out_is_refused(
    model: torch.nn.Module, handler: dict[str, str], device_type: str, message: str
) -> None:
    config = {"handler": {"image_size": 64, **handler}, "deviceType": device_type}
    with pytest.raises(ExpectedError, match=message):
        plan_engine(config, model, None)


def test_operations_are_counted_for_one_picture() -> None:
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Flatten())
    assert count_flop(layer, Square(16)) == 2 * 3 * 8 * 16 * 16


def test_nothing_reports_use_over_the_network() -> None:
    pytest.importorskip("openvino")
    # A process of its own: other tests may have imported what reports.
    script = """
import sys
from offpath.archive.engines.exporters import import_package
for name in ("openvino", "nncf"):
    import_package(name, name, "a test")
print([n for n in sys.modules if n.startswith("openvino_telemetry.")])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
