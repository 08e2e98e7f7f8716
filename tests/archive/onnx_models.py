"""Makes small ONNX classifiers, and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 4
FLOAT = TensorProto.FLOAT


def write_onnx(
    path: Path,
    shape: Sequence[int | str] = ("n", 3, "h", "w"),
    kind: int = FLOAT,
    outputs: int = 1,
    inputs: int = 1,
    operator: str = "GlobalAveragePool",
    opset: int = 17,
    name: str = "images",
) -> Path:
    """Writes a model that averages each channel; its answers depend on the channels' order."""
    generator = np.random.default_rng(0)
    columns = shape[1] if isinstance(shape[1], int) else 3
    weight = generator.normal(size=(CLASSES, columns)).astype("f4")
    nodes = [
        helper.make_node("Cast", [name], ["floats"], to=FLOAT),
        helper.make_node(operator, ["floats"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight"], ["logits"], transB=1),
        helper.make_node("Identity", ["logits"], ["other"]),
    ]
    describe = helper.make_tensor_value_info
    given: list[Any] = [describe(name, kind, shape)]
    given += [describe(f"more{i}", FLOAT, [1]) for i in range(inputs - 1)]
    nodes += [helper.make_node("Identity", [one.name], [f"{one.name}_used"]) for one in given[1:]]
    made = [describe(one, FLOAT, None) for one in ("logits", "other")[:outputs]]
    made += [describe(f"{one.name}_used", FLOAT, None) for one in given[1:]]
    graph = helper.make_graph(
        nodes, "net", given, made, [numpy_helper.from_array(weight, "weight")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path
