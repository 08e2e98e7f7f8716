"""The process that prepares engines and builds their artefacts, apart from those that are measured:
`python -m profiling.engines_builder`.

Orders: `survey`, `prepare`, `build` (see child_process.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpath.archive.artefacts import EngineBuild, build_engine_folder
from offpath.archive.build import save_weights
from offpath.archive.calibration import load_photographs
from offpath.archive.parity import PICTURES, make_parity_set, write_parity_file
from offpath.handler.backends.artefacts import PARITY_FILE
from offpath.handler.backends.choose import choose_precision
from offpath.handler.config import HandlerConfig
from offpath.handler.decode import Pixels
from offpath.handler.errors import ExpectedError
from offpath.profiling.core.child_process import obey
from offpath.profiling.experiments.engines_child import (
    ALL,
    GATE,
    WEIGHTS,
    Answer,
    EngineProcess,
    artefact_folder,
)
from offpath.profiling.load.model_under_test import load_model

# Engine -> module that it needs besides torch.
MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "onnxruntime",
}
CPU, CUDA = "cpu", "cuda"
# Of a probability's move.
NO_BOUND = 1.0
# Those that run on one kind of device alone.
DEVICE_OF = {"openvino": CPU, "tensorrt": CUDA}


class BuilderProcess(EngineProcess):
    """Prepares and builds."""

    def survey(self, order: Mapping[str, Any]) -> Answer:
        """Why variants cannot run here, None for those that can; the parity gate's bound."""
        return {
            "reasons": {
                variant: why_not(variant, order["device"])
                for variant in order["variants"]
            },
            "parity_bound": HandlerConfig().parity_bound,
        }

    def prepare(self, order: Mapping[str, Any]) -> Answer:
        """Writes the weights, and the photographs with the answers of eager fp32."""
        model, folder = load_model(order["model"]), Path(order["folder"])
        save_weights(model.source, folder / WEIGHTS)
        config, module = model.config, model.source.module.eval()
        for name, pictures, count in (
            (ALL, list_pictures(Path(order["photographs"]), config), None),
            (GATE, load_photographs(None, config).held_out, PICTURES),
        ):
            parity = make_parity_set(module, config, pictures, count or len(pictures))
            write_parity_file(folder / name, parity)
        return {
            "handler": model.source.handler,
            "model_module": f"archive.models.{model.model_file.stem}",
        }

    def build(self, order: Mapping[str, Any]) -> Answer:
        """Builds a variant's artefact as `offpath archive` does; answers its files' size."""
        model, engine, precision = (
            load_model(order["model"]),
            order["engine"],
            order["precision"],
        )
        folder = artefact_folder(Path(order["folder"]), engine, precision)
        device_type = "gpu" if order["device"] == CUDA else CPU
        build = EngineBuild(engine, precision, device_type)
        build_artefact(build, model.source.module.eval(), model.config, folder)
        files = [path for path in folder.iterdir() if path.name != PARITY_FILE]
        return {"size_bytes": sum(path.stat().st_size for path in files)}


def build_artefact(
    build: EngineBuild, model: torch.nn.Module, config: HandlerConfig, folder: Path
) -> None:
    """Builds as `offpath archive` does, but keeps what it would refuse for its answers.

    Those are shown beside its speed. int8 that cannot be calibrated to within the bound is made
    without one: with every layer in int8.
    """
    try:
        build_engine_folder(build, model, config, folder, say=print)
    except ExpectedError as error:
        print(error)
        if (folder / PARITY_FILE).is_file():
            return  # complete: only the verdict comes after this file
        if build.precision != "int8" or config.parity_bound == NO_BOUND:
            raise
        build_artefact(build, model, replace(config, parity_bound=NO_BOUND), folder)


def list_pictures(folder: Path, config: HandlerConfig) -> Pixels:
    """All photographs of a folder as the handler decodes and resizes them."""
    sets = load_photographs(folder, config)
    return np.concatenate([sets.calibration, sets.held_out])


def why_not(variant: str, device: str) -> str | None:
    """Why a variant cannot run on this machine, or would not be what its name says."""
    engine, precision = variant.split()
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
