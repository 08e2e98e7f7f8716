"""Names of what `offpath archive` puts beside the weights for a back end, in one folder.

Each artefact maps `pictures`, uint8 [batch, size, size, 3], to `logits`, float32 [batch, classes].
"""

from __future__ import annotations

from pathlib import Path

from offpath.handler.model.engines import BackendUnavailable

FOLDER = "engine"
INPUT, OUTPUT = "pictures", "logits"
PARITY_FILE = "parity.npz"
# OpenVINO lowers fp32 to bf16 itself, TensorRT to fp16.
_STORED_AS = {("openvino", "bf16"): "fp32", ("tensorrt", "fp16"): "fp32"}
_SUFFIXES = {
    "compiled": "pt2",
    "onnxruntime": "onnx",
    "openvino": "xml",
    "tensorrt": "onnx",
}


def artefact_name(engine: str, precision: str) -> str | None:
    """File that a back end loads; None for eager, which runs the model itself."""
    if engine not in _SUFFIXES:
        return None
    stored = _STORED_AS.get((engine, precision), precision)
    return f"model.{stored}.{_SUFFIXES[engine]}"


def find_artefact(folder: Path | None, engine: str, precision: str) -> Path:
    """The file in the archive's engine folder.

    Raises:
        BackendUnavailable: it is not there.
    """
    name = artefact_name(engine, precision)
    if name is None:
        raise ValueError(f"engine {engine!r} has no artefact")
    path = (folder or Path(FOLDER)) / name
    if not path.is_file():
        raise BackendUnavailable(
            f"the archive has no {FOLDER}/{name}; build it with `offpath archive --engine "
            f"{engine} --precision {precision}`"
        )
    return path
