"""ONNX models: what is refused, and that each engine answers like ONNX Runtime alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpath.archive.engine_files.engine_folder import EnginePlan, build_engine_folder, plan_engine
from offpath.archive.model_probe import count_classes
from offpath.archive.photograph_sets import PhotographSets
from offpath.archive.sources.model_source import load_model_source
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.model.engines.choose import make_engine

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from tests.archive.onnx_models import CLASSES, write_onnx  # noqa: E402
from tests.guarantees import guarantee  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 2}, r"has 2 inputs \(images, more0\); expected one"),
        ({"outputs": 2}, r"has 2 outputs \(logits, other\); expected one"),
        ({"kind": onnx.TensorProto.UINT8}, r"has the input tensor\(uint8\)"),
        ({"shape": (1, 32, 32, 3)}, "32, 3], channels last; expected one, float32"),
        ({"shape": (1, 4, 32, 32)}, r"4, 32, 32\]; expected one, .* with 1 or 3 channels"),
        ({"operator": "NoSuch"}, "cannot be loaded by ONNX Runtime: .*NoSuch"),
        ({"opset": 6}, "operator set 6; export it for 7"),
    ],
)
def test_other_models_are_refused_in_one_line(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_onnx(tmp_path / "net.onnx", **arguments)
    with pytest.raises(WrongOption, match=f"--model net.onnx .*{message}") as caught:
        load_model_source(str(path), None)
    assert "\n" not in str(caught.value)


@guarantee("Pickles and damaged ONNX files")
@pytest.mark.parametrize("size", [0, 1, 50, -1])
def test_a_damaged_file_is_refused(size: int, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "net.onnx")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WrongOption, match="is not an ONNX model, or is damaged"):
        load_model_source(str(path), None)


@guarantee("Pickles and damaged ONNX files")
@pytest.mark.parametrize("location", ["net.onnx.data", "../../../etc/passwd"])
def test_weights_in_other_files_are_refused(location: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "net.onnx")
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    (tmp_path / "net.onnx.data").write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(WrongOption, match="keeps its weights in other files; export"):
        load_model_source(str(path), None)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ({"engine": "eager"}, "--engine eager --precision auto: an ONNX model is run by"),
        ({"precision": "int8"}, "an ONNX model is run by onnxruntime in fp32"),
        ({"precision": "fp16"}, "--precision 'fp16': --engine onnxruntime has fp32"),
        ({"explanations": True}, "explanations need the gradients of a PyTorch model"),
    ],
)
def test_what_it_cannot_do_is_refused(
    handler: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = load_model_source(str(write_onnx(tmp_path / "net.onnx")), None).module
    with pytest.raises(WrongOption, match=message):
        plan_engine(HandlerConfig(**handler), "cpu", model)


# The second model's names are those of an engine's file.
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (("n", 3, "h", "w"), "images"),
        ((4, 3, 32, 24), "offpath_images"),
        ((1, 3, 32, 24), "x"),
    ],
)
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_any_batch_is_answered_as_by_onnx_runtime_alone(
    engine: str, shape: tuple[int | str, ...], name: str, tmp_path: Path
) -> None:
    pytest.importorskip(engine)
    path = write_onnx(tmp_path / "net.onnx", shape, name=name)
    mean, std = (104.0, 117.0, 124.0), (58.0, 57.0, 9.0)
    config = HandlerConfig(
        **{"image_size": "32x24", "channel_order": "bgr", "pixel_scale": 255},
        **{"mean": mean, "std": std},
    )
    images = np.random.default_rng(0).integers(0, 256, (9, 32, 24, 3), np.uint8)
    images[:, :, :, 0] //= np.arange(1, 10, dtype=np.uint8)[:, None, None]
    inputs = ((images[..., ::-1] - mean) / std).transpose(0, 3, 1, 2).astype("f4")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    step = shape[0] if isinstance(shape[0], int) else 9
    padded = np.concatenate([inputs, inputs])[: -(-9 // step) * step]
    expected = np.concatenate(
        [session.run(None, {name: one})[0] for one in np.split(padded, len(padded) // step)]
    )[:9]
    model = load_model_source(str(path), None).module
    assert count_classes(model, InputGeometry((32, 24))) == CLASSES
    plan, sets = EnginePlan(engine, "fp32"), PhotographSets(images, images)
    build_engine_folder(plan, model, config, sets, tmp_path / "engine")
    for kind in (engine, "eager"):
        run = make_engine(kind, "fp32", model, config, CPU, tmp_path / "engine", 1)
        for count in (9, 1, 4, 6):
            answers = run(torch.from_numpy(images[:count])).numpy()
            np.testing.assert_allclose(answers, expected[:count], atol=1e-4, rtol=1e-4)
