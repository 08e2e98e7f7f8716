"""int8 by NNCF, calibrated on photographs, with as many first layers in fp32 as needed.

On EfficientNet-Lite0 three things made int8 change answers, and this module avoids each: ranges per
channel (a channel that is silent in all calibration images is then cut to nothing), mean instead of
outermost ranges, and rounding in the first layers, whose error all later layers carry on.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offpath.archive import Say
from offpath.archive.engine_files.exporters import import_package
from offpath.errors import ExpectedError
from offpath.handler.image.decode import Pixels
from offpath.handler.model.parity import Parity

# Numbers of first convolutions and matrix products that stay in fp32, tried in this order.
FP32_LAYERS = (0, 2, 5, 9, 17)
LAYERS = ("Convolution", "GroupConvolution", "MatMul")

Measure = Callable[[Path], Parity]


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
        ExpectedError: NNCF is missing, or no attempt stays within the bound.
    """
    nncf = import_package("nncf", "int8", "--precision int8")
    layers = _Graph(source).layers
    moves = []
    for count in (n for n in FP32_LAYERS if n < max(1, len(layers))):
        graph = _Graph(source)
        with _quiet():
            graph.quantise(nncf, calibration, layers[:count])
        # Each attempt has its own folder: a measured graph may still be mapped into memory.
        folder = source.parent / f"int8-{count}"
        folder.mkdir()
        graph.save(folder / name)
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


class _Graph:
    def __init__(self, path: Path) -> None:
        self._openvino = import_package("openvino", "openvino", "--engine openvino")
        self._graph = self._openvino.Core().read_model(str(path))
        self.layers = [
            node.get_friendly_name()
            for node in self._graph.get_ordered_ops()
            if node.get_type_name() in LAYERS
        ]

    def quantise(self, nncf: Any, calibration: Pixels, keep: list[str]) -> None:
        data = [image[None] for image in calibration]
        self._graph = nncf.quantize(
            self._graph, nncf.Dataset(data), **_options(nncf, keep, len(data))
        )

    def save(self, path: Path) -> None:
        self._openvino.save_model(self._graph, str(path), compress_to_fp16=False)


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
