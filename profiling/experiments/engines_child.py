"""The process that engines are built or measured in: see `CHILD` in engines.py.

A measured one imports what a worker's handler imports and nothing else, so that its memory is the
engine's; what builds is imported by the orders that build. Orders: `survey`, `prepare`, `build` of
one process, `load`, `check`, `warm_up`, `forward` of others (see core/child_process.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ExpectedError
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines import BackendUnavailable
from offpath.handler.model.engines.artefacts import PARITY_FILE
from offpath.handler.model.engines.choose import choose_precision, make_backend
from offpath.handler.model.parity import ParitySet, load_parity_set, measure_parity
from offpath.handler.model.weights import make_with_weights
from offpath.handler.pipeline import set_threads
from offpath.handler.process.allocator import keep_freed_memory
from offpath.handler.stages import StageTimer
from offpath.profiling.core.child_process import obey

if TYPE_CHECKING:
    from offpath.archive.engines.artefacts import EngineBuild

Answer = dict[str, Any]
Order = Mapping[str, Any]
# What `prepare` leaves: weights, and eager fp32's answers on all the photographs and on those that
# an archive's gate compares.
WEIGHTS, ALL, GATE = "weights.pt", "all.npz", "gate.npz"
WARM_UP_RUNS = 2
# A window goes on until it has so many batches.
LEAST_RUNS = 3
CPU, CUDA = "cpu", "cuda"
# Those that run on one kind of device alone, and the module that an engine needs besides torch.
DEVICE_OF = {"openvino": CPU, "tensorrt": CUDA}
MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "onnxruntime",
}
# Of a probability's move.
NO_BOUND = 1.0


class EngineProcess:
    """Builds, or runs one engine from its load to its end."""

    def survey(self, order: Order) -> Answer:
        """Variant -> why it cannot run here, None for those that can."""
        return {name: why_not(name, order["device"]) for name in order["variants"]}

    def prepare(self, order: Order) -> Answer:
        """Writes a model's weights, and the photographs with the answers of eager fp32."""
        import numpy as np

        from offpath.archive.build import save_weights
        from offpath.archive.engines.calibration import load_photographs
        from offpath.archive.engines.parity import (
            PICTURES,
            make_parity_set,
            write_parity_file,
        )
        from offpath.profiling.load.model_under_test import load_model

        model, folder = load_model(order["model"]), Path(order["folder"])
        config, module = model.config, model.source.module.eval()
        save_weights(model.source, folder / WEIGHTS)
        own = load_photographs(Path(order["photographs"]), config)
        every = np.concatenate([own.calibration, own.held_out])
        for name, pictures, count in (
            (ALL, every, len(every)),
            (GATE, load_photographs(None, config).held_out, PICTURES),
        ):
            parity = make_parity_set(module, config, pictures, count)
            write_parity_file(folder / name, parity)
        return {
            "handler": model.source.handler,
            "model_module": f"offpath.archive.models.{model.model_file.stem}",
        }

    def build(self, order: Order) -> Answer:
        """Builds a variant's artefact as `offpath archive` does; answers its files' size."""
        from offpath.archive.engines.artefacts import EngineBuild
        from offpath.profiling.load.model_under_test import load_model

        model, folder = load_model(order["model"]), find_artefact(order)
        device_type = "gpu" if order["device"] == CUDA else CPU
        build = EngineBuild(order["engine"], order["precision"], device_type)
        build_artefact(build, model.source.module.eval(), model.config, folder)
        files = [path for path in folder.iterdir() if path.name != PARITY_FILE]
        return {"artefact_bytes": sum(path.stat().st_size for path in files)}

    def load(self, order: Order) -> Answer:
        """Makes the engine and answers one picture; `load_s` is what that took."""
        keep_freed_memory()
        set_threads(order["threads"])
        self._config = HandlerConfig.from_mapping(order["handler"], environ={})
        self._device = torch.device(order["device"])
        self._folder = Path(order["folder"])
        pictures = self._read_reference(ALL).pictures
        begin_s = time.perf_counter()
        model = torch.nn.Module()  # only eager looks at it
        if order["engine"] == "eager":
            model = load_weights(order["model_module"], self._folder / WEIGHTS)
            model.to(self._device)
        self._backend = make_backend(
            *(order["engine"], order["precision"], model, self._config, self._device),
            *(find_artefact(order), order["threads"]),
        )
        self._runner = BatchRunner(
            self._backend, self._config, self._device, order["max_batch"]
        )
        self._runner.put(0, pictures[0])
        self._runner.run(1, StageTimer())
        load_s = time.perf_counter() - begin_s
        for index in range(self._runner.max_batch):
            self._runner.put(index, pictures[index % len(pictures)])
        return {"load_s": load_s}

    def check(self, _: Order) -> Answer:
        """Compares the answers with eager fp32's, on all photographs and on the gate's."""
        return {
            f"{name}.{what}": figure
            for name, file in (("all", ALL), ("gate", GATE))
            for what, figure in asdict(
                measure_parity(
                    self._backend,
                    self._read_reference(file),
                    self._config,
                    self._device,
                )
            ).items()
        }

    def _read_reference(self, file: str) -> ParitySet:
        config = self._config
        return load_parity_set(self._folder / file, config.image_size, config.channels)

    def warm_up(self, order: Order) -> Answer:
        """A few batches of the size that comes next."""
        for _ in range(WARM_UP_RUNS):
            self._runner.run(order["batch_size"], StageTimer())
        return {}

    def forward(self, order: Order) -> Answer:
        """Batches for some seconds; `begin_s` is when, by the clock that all processes share."""
        time.sleep(max(0.0, order["begin_s"] - time.monotonic()))
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        runs, elapsed_s = 0, 0.0
        while elapsed_s < order["seconds"] or runs < LEAST_RUNS:
            self._runner.run(order["batch_size"], StageTimer())
            runs += 1
            elapsed_s = time.perf_counter() - begin_s
        return {
            "images": runs * order["batch_size"],
            "elapsed_s": elapsed_s,
            "cpu_s": time.process_time() - cpu_s,
        }

    def explain(self, error: Exception) -> Answer:
        """An answer for what the engine raised."""
        if isinstance(error, (BackendUnavailable, ExpectedError)):
            return {"error": str(error), "traceback": ""}
        text = "".join(traceback.format_exception(error))
        return {"error": f"{type(error).__name__}: {error}", "traceback": text}


def find_artefact(order: Order) -> Path:
    """Where a variant's artefact lies; stands for the archive's engine folder."""
    return Path(order["folder"]) / f"engine-{order['engine']}-{order['precision']}"


def load_weights(model_module: str, weights: Path) -> torch.nn.Module:
    """The model as a worker has it: its weights are the file's pages, mapped.

    Args:
        model_module: defines exactly one class.
    """
    definition = importlib.import_module(model_module)
    (model_class,) = (
        member
        for member in vars(definition).values()
        if isinstance(member, type) and member.__module__ == model_module
    )
    return make_with_weights(model_class, str(weights)).eval()


def build_artefact(
    build: EngineBuild, model: torch.nn.Module, config: HandlerConfig, folder: Path
) -> None:
    """Builds as `offpath archive` does, but keeps what it would refuse for its answers.

    Those are shown beside its speed. int8 that cannot be calibrated to within the bound is made
    without one: with every layer in int8.
    """
    from offpath.archive.engines.artefacts import build_engine_folder

    try:
        build_engine_folder(build, model, config, folder, say=print)
    except ExpectedError as error:
        print(error)
        if (folder / PARITY_FILE).is_file():
            return  # complete: only the verdict comes after this file
        if build.precision != "int8" or config.parity_bound == NO_BOUND:
            raise
        build_artefact(build, model, replace(config, parity_bound=NO_BOUND), folder)


def why_not(variant: str, device: str) -> str | None:
    """Why a variant cannot run on this machine, or would not be what its name says."""
    engine, precision = variant.split()
    wanted = DEVICE_OF.get(engine, device)
    if wanted != device:
        return f"{engine} runs on {wanted}; this run measures {device}"
    if device == CPU and precision == "fp16":
        return "fp16 is for CUDA; processors compute it in fp32"
    has_bf16 = choose_precision(torch.device(CPU)) == "bf16"
    if (engine, precision) == ("openvino", "bf16") and not has_bf16:
        return "this processor has no bf16 (avx512_bf16 or amx_bf16); it would be fp32"
    module = MODULES.get(engine)
    if module is not None and importlib.util.find_spec(module) is None:
        return f"needs {module}: pip install 'torchserve-offpath[{module}]'"
    return None


if __name__ == "__main__":
    obey(EngineProcess())
