"""Checks an ONNX model before it goes into an archive. An ONNX file contains no Python code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offpath.archive.model_probe import format_error
from offpath.errors import MissingPackage, WrongOption
from offpath.handler.image.geometry import CHANNELS
from offpath.handler.model.engines.engine import EngineUnavailable
from offpath.handler.model.engines.onnx_runtime import CPU, make_session

# The first operator set that ONNX Runtime supports, and in which operators broadcast.
MIN_OPSET = 7
EXPECTED = "expected one, float32 [batch, channels, height, width]"


def read_onnx_input(path: Path) -> dict[str, Any]:
    """Checks that a file is one model that maps images to scores.

    Returns:
        The `handler:` settings that follow from the model's input, where it is fixed.

    Raises:
        MissingPackage: onnxruntime is not installed.
        WrongOption: the file is no model, keeps weights elsewhere, or has other inputs or outputs.
    """
    where = f"--model {path.name}"
    _check_file(path, where)
    try:
        # From memory, so that it cannot read files beside it, which the archive would lack.
        session = make_session(path.read_bytes(), 1, [CPU])
    except EngineUnavailable as error:
        raise MissingPackage("onnxruntime, which an ONNX model needs,", "onnxruntime") from error
    except Exception as error:  # ONNX Runtime raises errors of many kinds
        raise WrongOption(
            f"{where} cannot be loaded by ONNX Runtime: {format_error(error)}"
        ) from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1:
        names = ", ".join(one.name for one in inputs)
        raise WrongOption(f"{where} has {len(inputs)} inputs ({names}); {EXPECTED}")
    kind, shape = inputs[0].type, inputs[0].shape
    if kind != "tensor(float)" or len(shape) != 4:
        raise WrongOption(f"{where} has the input {kind} {shape}; {EXPECTED}")
    if len(outputs) != 1:
        names = ", ".join(one.name for one in outputs)
        raise WrongOption(
            f"{where} has {len(outputs)} outputs ({names}); expected one, [batch, classes]; cut "
            "the others off with onnx.utils.extract_model"
        )
    return _read_shape(shape, where)


def _check_file(path: Path, where: str) -> None:
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        opset = next(one.version for one in model.opset_import if not one.domain)
    except Exception as error:  # protobuf raises errors of its own
        raise WrongOption(f"{where} is not an ONNX model, or is damaged") from error
    is_external = onnx.external_data_helper.uses_external_data
    if any(is_external(tensor) for tensor in model.graph.initializer):
        raise WrongOption(
            f"{where} keeps its weights in other files; export it into one file "
            "(torch.onnx.export(..., external_data=False))"
        )
    if opset < MIN_OPSET:
        raise WrongOption(
            f"{where} is written for ONNX's operator set {opset}; export it for "
            f"{MIN_OPSET} or a later one"
        )


def _read_shape(shape: list[Any], where: str) -> dict[str, Any]:
    _, channels, height, width = shape
    if width in CHANNELS or isinstance(channels, int) and channels not in CHANNELS:
        order = ", channels last" if width in CHANNELS else ""
        raise WrongOption(f"{where} has the input {shape}{order}; {EXPECTED} with 1 or 3 channels")
    settings: dict[str, Any] = {}
    if channels == 1:
        settings["channels"] = 1
    if isinstance(height, int) and isinstance(width, int):
        settings["image_size"] = height if height == width else f"{height}x{width}"
    return settings
