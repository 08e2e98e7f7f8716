"""Writes the files that OpenVINO and ONNX Runtime load, in fp32 or quantised.

Every file maps `images`, uint8 [batch, height, width, channels], to `logits`, float32
[batch, classes], with the normalisation inside and for any batch size. Each function imports the
packages that its format needs.

On EfficientNet-Lite0 three things made int8 change answers, and `quantise` avoids each: ranges per
channel (a channel that is silent in all calibration images is then cut to nothing), mean instead of
outermost ranges, and rounding in the first layers, whose error all later layers carry on.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpath.archive import Say
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.model.engines.engine import OUTPUT
from offpath.handler.model.engines.open_vino import forbid_telemetry
from offpath.handler.model.normalise import ImageModel, scale_and_bias
from offpath.handler.model.parity import Parity

# Numbers of first convolutions and matrix products that stay in fp32, tried in this order.
FP32_LAYERS = (0, 2, 5, 9, 17)
LAYERS = ("Convolution", "GroupConvolution", "MatMul")

Measure = Callable[[Path], Parity]
# torch.export takes a dimension of 1 for a constant; any larger batch will do.
EXAMPLE_BATCH = 2
MAX_IMAGES = 4096


def quantise(
    source: Path,
    name: str,
    calibration: Pixels,
    bound: float,
    measure: Measure,
    say: Say,
) -> Path:
    """Makes an int8 graph from OpenVINO's fp32 graph.

    Args:
        source: the fp32 graph; its folder receives a folder for each attempt.
        name: file name of the int8 graph.
        calibration: uint8 [n, height, width, channels].
        bound: how far any probability may move.
        measure: compares the answers of the graph in a folder with those of fp32, on photographs
            of the calibration set.
        say: told the result of each attempt.

    Returns:
        The folder with the first graph within the bound.

    Raises:
        ExpectedError: no attempt stays within the bound.
    """
    forbid_telemetry()
    import nncf
    import openvino

    data = [image[None] for image in calibration]
    graph = openvino.Core().read_model(str(source))
    layers = [
        node.get_friendly_name()
        for node in graph.get_ordered_ops()
        if node.get_type_name() in LAYERS
    ]
    moves = []
    for count in (n for n in FP32_LAYERS if n < max(1, len(layers))):
        graph = openvino.Core().read_model(str(source))
        options = _options(nncf, layers[:count], len(data))
        with _quiet():
            graph = nncf.quantize(graph, nncf.Dataset(data), **options)
        # Each attempt has its own folder: a measured graph may still be mapped into memory.
        folder = source.parent / f"int8-{count}"
        folder.mkdir()
        openvino.save_model(graph, str(folder / name), compress_to_fp16=False)
        parity = measure(folder)
        moves.append(parity.largest_move)
        say(
            f"int8 with {count} of {len(layers)} layers in fp32: moves a probability by up to "
            f"{parity.largest_move:.3f}, changes the best class of {parity.top1_changes} of "
            f"{parity.images} photographs"
        )
        if parity.holds(bound):
            return folder
    raise ExpectedError(
        f"int8 changes this model's answers: at best it moved a probability by {min(moves):.3f}, "
        f"and handler.parity_bound is {bound}; use --precision fp32, give more photographs like "
        "those that clients will send (--calibrate FOLDER), or allow more with "
        "--set parity_bound=..."
    )


def _options(nncf: Any, keep: list[str], images: int) -> dict[str, Any]:
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
        QuantizationParameters,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    advanced = AdvancedQuantizationParameters(
        # The fix would halve the first layer's range, for processors without VNNI.
        overflow_fix=OverflowFix.DISABLE,
        activations_quantization_params=QuantizationParameters(per_channel=False),
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
    )
    return {
        # MIXED gives activations below zero their own zero point.
        "preset": nncf.QuantizationPreset.MIXED,
        "subset_size": images,
        "ignored_scope": nncf.IgnoredScope(names=keep) if keep else None,
        "advanced_parameters": advanced,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences NNCF's log, and sends its progress bars to stderr, where ours are."""
    # nncf.set_log_level would also change the log handlers of other packages.
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)


def export_openvino(model: torch.nn.Module, config: HandlerConfig, path: Path) -> None:
    """Writes OpenVINO's graph and its weights (`.bin`, beside it), in full precision.

    Raises:
        ExpectedError: torch.export cannot convert the model.
    """
    wrapped = ImageModel(copy.deepcopy(model), config).eval().requires_grad_(False)
    wrapped.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shape = config.input_geometry.shape
    images = torch.zeros((EXAMPLE_BATCH, *shape), dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1, max=MAX_IMAGES)
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
    forbid_telemetry()
    import openvino

    graph = openvino.convert_model(source)
    if shape is not None:
        graph.reshape(openvino.PartialShape(list(shape)))
    graph.outputs[0].get_tensor().set_names({OUTPUT})
    openvino.save_model(graph, str(path), compress_to_fp16=False)


# Begins the names of what is added; a user's model has no such names.
NODE_PREFIX = "offpath/"


def prepend_normalisation(source: Path, config: HandlerConfig, path: Path) -> None:
    """Writes a copy of a checked model that maps uint8 [batch, height, width, channels].

    A batch size that is fixed stays fixed.
    """
    import onnx

    model = onnx.load(str(source))
    graph = model.graph
    # Before version 4, weights are listed among the inputs too.
    weights = {tensor.name for tensor in graph.initializer}
    old = next(one for one in graph.input if one.name not in weights)
    batch = old.type.tensor_type.shape.dim[0].dim_value or "batch"
    images = onnx.helper.make_tensor_value_info(
        f"{NODE_PREFIX}images",
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
        inputs, output = [first], f"{NODE_PREFIX}{operator}"
        if constant is not None:
            inputs.append(f"{output}/constant")
            value = onnx.numpy_helper.from_array(constant)
            nodes.append(onnx.helper.make_node("Constant", [], inputs[1:], value=value))
        nodes.append(onnx.helper.make_node(operator, inputs, [output], **attributes))
        first = output
    nodes[-1].output[0] = last
    return nodes
