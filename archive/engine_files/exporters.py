"""Writes the files that OpenVINO and ONNX Runtime load.

Every file maps `images`, uint8 [batch, height, width, channels], to `logits`, float32
[batch, classes], with the normalisation inside and for any batch size. Each function imports the
packages that its format needs.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpath.errors import ExpectedError, MissingPackage
from offpath.handler.config import HandlerConfig
from offpath.handler.model.engines.engine import OUTPUT
from offpath.handler.model.engines.open_vino import forbid_telemetry
from offpath.handler.model.normalise import ImageModel, scale_and_bias

# torch.export takes a dimension of 1 for a constant; any larger batch will do.
EXAMPLE_BATCH = 2
MOST_IMAGES = 4096


def import_package(name: str, extra: str, purpose: str) -> Any:
    """Imports an optional package.

    Raises:
        MissingPackage: it is not installed.
    """
    forbid_telemetry()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage(f"{name}, which {purpose} needs,", extra) from error


def export_openvino(model: torch.nn.Module, config: HandlerConfig, path: Path) -> None:
    """Writes OpenVINO's graph and its weights (`.bin`, beside it), in full precision.

    Raises:
        ExpectedError: torch.export cannot convert the model.
    """
    import_package("openvino", "openvino", "--engine openvino")
    wrapped = ImageModel(copy.deepcopy(model), config).eval().requires_grad_(False)
    wrapped.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shape = config.input_geometry.shape
    images = torch.zeros((EXAMPLE_BATCH, *shape), dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1, max=MOST_IMAGES)
    try:
        with torch.inference_mode():
            program = torch.export.export(wrapped, (images,), dynamic_shapes=({0: batch},))
    except Exception as error:  # torch.export raises whatever the model's code raises
        raise ExpectedError(
            f"torch.export cannot convert the model ({type(error).__name__}: {error}); use "
            "--engine eager"
        ) from error
    # The conversion drops the sides; with known sides OpenVINO chooses kernels for them.
    save_for_openvino(program, path, [-1, *shape])


def save_for_openvino(source: Any, path: Path, shape: Sequence[int] | None = None) -> None:
    """Converts an exported program, or an ONNX file by its path.

    Args:
        shape: the input's, -1 for any length; None leaves it as it is.
    """
    openvino = import_package("openvino", "openvino", "--engine openvino")
    graph = openvino.convert_model(source)
    if shape is not None:
        graph.reshape(openvino.PartialShape(list(shape)))
    graph.outputs[0].get_tensor().set_names({OUTPUT})
    openvino.save_model(graph, str(path), compress_to_fp16=False)


# Begins the names of what is added; a user's model has no such names.
PREFIX = "offpath/"


def prepend_normalisation(source: Path, config: HandlerConfig, path: Path) -> None:
    """Writes a copy of a checked model that maps uint8 [batch, height, width, channels].

    A batch size that is fixed stays fixed.
    """
    onnx = import_package("onnx", "onnxruntime", "an ONNX model")
    model = onnx.load(str(source))
    graph = model.graph
    # Before version 4, weights are listed among the inputs too.
    weights = {tensor.name for tensor in graph.initializer}
    old = next(one for one in graph.input if one.name not in weights)
    batch = old.type.tensor_type.shape.dim[0].dim_value or "batch"
    images = onnx.helper.make_tensor_value_info(
        f"{PREFIX}images",
        onnx.TensorProto.UINT8,
        [batch, *config.input_geometry.shape],
    )
    nodes = [*_make_nodes(onnx, config, images.name, old.name), *graph.node]
    inputs = [images, *(one for one in graph.input if one.name != old.name)]
    for field, content in ((graph.node, nodes), (graph.input, inputs)):
        kept = list(content)
        del field[:]
        field.extend(kept)
    onnx.save(model, str(path))


def _make_nodes(onnx: Any, config: HandlerConfig, first: str, last: str) -> list[Any]:
    scale, bias = (one.view(1, -1, 1, 1).numpy() for one in scale_and_bias(config))
    order = [2, 1, 0] if config.channel_order == "bgr" else range(config.channels)
    steps: list[tuple[str, Any, dict[str, Any]]] = [
        ("Gather", np.array(order), {"axis": 3}),
        ("Transpose", None, {"perm": [0, 3, 1, 2]}),
        ("Cast", None, {"to": onnx.TensorProto.FLOAT}),
        ("Mul", scale, {}),
        ("Add", bias, {}),
    ]
    if config.channel_order == "rgb":
        del steps[0]
    nodes = []
    for operator, constant, attributes in steps:
        inputs, output = [first], f"{PREFIX}{operator}"
        if constant is not None:
            inputs.append(f"{output}/constant")
            value = onnx.numpy_helper.from_array(constant)
            nodes.append(onnx.helper.make_node("Constant", [], inputs[1:], value=value))
        nodes.append(onnx.helper.make_node(operator, inputs, [output], **attributes))
        first = output
    nodes[-1].output[0] = last
    return nodes
