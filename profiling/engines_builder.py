"""The process that prepares engines and builds their artefacts, apart from those that are measured:
`python -m profiling.engines_builder`.

Orders: `survey`, `prepare`, `build` (see child_process.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from handler.backends import PRECISIONS
from handler.backends.choose import choose_precision
from handler.backends.eager import EagerBackend
from handler.config import HandlerConfig
from handler.decode import DecodeOptions, decode_image
from handler.resample import transform_with_torch
from profiling.child_process import obey
from profiling.engines_child import ARTEFACTS, PARITY, WEIGHTS, Answer, EngineProcess
from profiling.model_under_test import ModelUnderTest, load_model

# Engine -> module that it needs besides torch.
MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "onnxruntime",
}
CPU, CUDA = "cpu", "cuda"
# Those that run on one kind of device alone.
DEVICE_OF = {"openvino": CPU, "tensorrt": CUDA}
REFERENCE_BATCH = 4


class BuilderProcess(EngineProcess):
    """Prepares and builds."""

    def survey(self, order: Mapping[str, Any]) -> Answer:
        """Every variant, why it cannot run here if so, and the bound of the parity gate."""
        return {
            "variants": {
                f"{engine} {precision}": why_not(engine, precision, order["device"])
                for engine, precisions in PRECISIONS.items()
                for precision in precisions
            },
            "parity_bound": HandlerConfig().parity_bound,
        }

    def prepare(self, order: Mapping[str, Any]) -> Answer:
        """Writes the weights, and the photographs with the answers of eager fp32."""
        model, folder = load_model(order["model"]), Path(order["folder"])
        model.save_weights(folder / WEIGHTS)
        photographs = [Path(path).read_bytes() for path in order["photographs"]]
        pictures = make_pictures(photographs, model.config)
        np.savez(
            folder / PARITY,
            pictures=pictures,
            probabilities=classify(model, pictures),
        )
        return {
            "handler": model.source.handler,
            "model_module": f"archive.models.{model.model_file.stem}",
            "is_foldable": is_foldable(model),
        }

    def build(self, order: Mapping[str, Any]) -> Answer:
        """Builds a variant's artefact as `offpath archive` does; answers its files' size."""
        raise NotImplementedError


def make_pictures(
    photographs: Sequence[bytes], config: HandlerConfig
) -> npt.NDArray[np.uint8]:
    """Photographs as the handler decodes and resizes them, uint8 [n, size, size, 3]."""
    min_size = int(config.resize_size * config.scale_margin)
    options = DecodeOptions(min_size, config.exif_orientation, config.max_pixels)
    return np.stack(
        [
            transform_with_torch(
                decode_image(bytearray(photograph), options),
                config.resize_size,
                config.image_size,
            )
            for photograph in photographs
        ]
    )


def classify(
    model: ModelUnderTest, pictures: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    """Probabilities of eager fp32, float32 [n, classes]."""
    backend = EagerBackend(
        model.source.module.eval(), model.config, torch.device(CPU), fold=False
    )
    with torch.inference_mode():
        answers = [
            torch.softmax(backend(part), 1)
            for part in torch.from_numpy(pictures).split(REFERENCE_BATCH)
        ]
    probabilities: npt.NDArray[np.float32] = torch.cat(answers).numpy()
    return probabilities


def is_foldable(model: ModelUnderTest) -> bool:
    """Whether the normalisation goes into the model's first convolution."""
    backend = EagerBackend(model.source.module.eval(), model.config, torch.device(CPU))
    return backend.is_folded


def why_not(engine: str, precision: str, device: str) -> str | None:
    """Why a variant cannot run on this machine, or would not be what its name says."""
    wanted = DEVICE_OF.get(engine, device)
    if wanted != device:
        return f"{engine} runs on {wanted}; this run measures {device}"
    if device == CPU and precision == "fp16":
        return "fp16 is for CUDA; processors compute it in fp32"
    if (engine, precision) == ("openvino", "bf16") and not has_bf16():
        return "this processor has no bf16 (avx512_bf16 or amx_bf16); it would be fp32"
    module = MODULES.get(engine)
    if module is not None and importlib.util.find_spec(module) is None:
        return f"needs {module}: pip install 'torchserve-offpath[{module}]'"
    return None


def has_bf16() -> bool:
    """Whether the processor multiplies bf16."""
    return choose_precision(torch.device(CPU)) == "bf16"


if __name__ == "__main__":
    obey(BuilderProcess())
