"""Gives a user's ONNX model the input of an engine's file: uint8 pictures, not yet normalised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offpath.archive.engine_files.exporters import import_package
from offpath.handler.config import HandlerConfig
from offpath.handler.model.normalise import scale_and_bias

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
    pictures = onnx.helper.make_tensor_value_info(
        f"{PREFIX}pictures",
        onnx.TensorProto.UINT8,
        [batch, *config.input_geometry.shape],
    )
    nodes = [*_make_nodes(onnx, config, pictures.name, old.name), *graph.node]
    inputs = [pictures, *(one for one in graph.input if one.name != old.name)]
    for field, content in ((graph.node, nodes), (graph.input, inputs)):
        kept = list(content)
        del field[:]
        field.extend(kept)
    onnx.save(model, str(path))


def _make_nodes(onnx: Any, config: HandlerConfig, first: str, last: str) -> list[Any]:
    """Returns the nodes from the tensor `first` to the tensor `last`."""
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
