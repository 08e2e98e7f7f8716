"""int8 by NNCF, calibrated on photographs, with the first layers left in fp32 as far as needed.

On EfficientNet-Lite0 three things made int8 change answers, and each has its line here: ranges per
channel (a channel silent in all calibration pictures is then cut to nothing), mean instead of
outermost ranges, and rounding in the first layers, whose error all others carry on.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offpath.archive.engines.exporters import import_package
from offpath.handler.errors import ExpectedError
from offpath.handler.image.decode import Pixels
from offpath.handler.model.engines.artefacts import INPUT
from offpath.handler.model.parity import Parity

# How many of the first convolutions and matrix products stay in fp32; tried in turn.
FP32_LAYERS = (0, 2, 5, 9, 17)
ONNX_LAYERS = ("Conv", "Gemm", "MatMul")
OPENVINO_LAYERS = ("Convolution", "GroupConvolution", "MatMul")

Measure = Callable[[Path], Parity]
Say = Callable[[str], None]


def quantise(
    source: Path,
    name: str,
    calibration: Pixels,
    bound: float,
    measure: Measure,
    say: Say,
) -> Path:
    """Makes the int8 graph of an fp32 one, `.onnx` or OpenVINO's `.xml`.

    Args:
        source: fp32 graph; its folder takes what is tried.
        name: file name of the int8 graph.
        calibration: uint8 [n, size, size, 3].
        bound: how far any probability may move.
        measure: compares the answers of the graph in a folder with fp32's, on photographs of the
            calibration set.
        say: told what was tried.

    Returns:
        The folder that holds the first graph within the bound.

    Raises:
        ExpectedError: NNCF is missing, or no try stays within the bound.
    """
    nncf = import_package("nncf", "int8", "--precision int8")
    make_graph = _OnnxGraph if source.suffix == ".onnx" else _OpenVinoGraph
    layers = make_graph(source).layers
    moves = []
    for count in (n for n in FP32_LAYERS if n < max(1, len(layers))):
        graph = make_graph(source)
        with _quiet():
            graph.quantise(nncf, calibration, layers[:count])
        # A folder each: a graph that was measured may still be mapped.
        folder = source.parent / f"int8-{count}"
        folder.mkdir()
        graph.save(folder / name)
        parity = measure(folder)
        moves.append(parity.largest_move)
        say(
            f"int8 with {count} of {len(layers)} layers in fp32: moves a probability by "
            f"{parity.largest_move:.3f}, changes {parity.top1_changes} of {parity.pictures} best "
            "classes"
        )
        if parity.holds(bound):
            return folder
    raise ExpectedError(
        f"int8 changes this model's answers: at best it moved a probability by {min(moves):.3f}, "
        f"and handler.parity_bound is {bound}; use --precision fp32, give more photographs like "
        "those that will be sent (--calibrate FOLDER), or allow more with --set parity_bound=..."
    )


class _OnnxGraph:
    def __init__(self, path: Path) -> None:
        self._onnx = import_package("onnx", "onnxruntime", "an ONNX graph")
        self._graph = self._onnx.load(str(path))
        nodes = self._graph.graph.node
        self.layers = [node.name for node in nodes if node.op_type in ONNX_LAYERS]

    def quantise(self, nncf: Any, calibration: Pixels, keep: list[str]) -> None:
        data = [{INPUT: picture[None]} for picture in calibration]
        self._graph = nncf.quantize(
            self._graph, nncf.Dataset(data), **_options(nncf, keep, len(data))
        )

    def save(self, path: Path) -> None:
        self._onnx.save(self._graph, str(path))


class _OpenVinoGraph:
    def __init__(self, path: Path) -> None:
        self._openvino = import_package("openvino", "openvino", "--engine openvino")
        self._graph = self._openvino.Core().read_model(str(path))
        self.layers = [
            node.get_friendly_name()
            for node in self._graph.get_ordered_ops()
            if node.get_type_name() in OPENVINO_LAYERS
        ]

    def quantise(self, nncf: Any, calibration: Pixels, keep: list[str]) -> None:
        data = [picture[None] for picture in calibration]
        self._graph = nncf.quantize(
            self._graph, nncf.Dataset(data), **_options(nncf, keep, len(data))
        )

    def save(self, path: Path) -> None:
        self._openvino.save_model(self._graph, str(path), compress_to_fp16=False)


def _options(nncf: Any, keep: list[str], pictures: int) -> dict[str, Any]:
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
        QuantizationParameters,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    advanced = AdvancedQuantizationParameters(
        # Half the first layer's range, for processors without VNNI.
        overflow_fix=OverflowFix.DISABLE,
        activations_quantization_params=QuantizationParameters(per_channel=False),
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
    )
    return {
        # Activations below zero get a zero point of their own.
        "preset": nncf.QuantizationPreset.MIXED,
        "subset_size": pictures,
        "ignored_scope": nncf.IgnoredScope(names=keep) if keep else None,
        "advanced_parameters": advanced,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without NNCF's lines; its progress bars go to stderr, as ours do."""
    # Not nncf.set_log_level: it also changes every handler that others have put there.
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
