"""The process that one engine is measured in: `python -m profiling.engines_child`.

It imports what a worker's handler imports and nothing else, so that its memory is the engine's.
Orders: `load`, `check`, `warm_up`, `forward` (see child_process.py).
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from offpath.handler.allocator import keep_freed_memory
from offpath.handler.backends import Backend, BackendUnavailable
from offpath.handler.backends.choose import make_backend
from offpath.handler.config import HandlerConfig
from offpath.handler.engine import Engine
from offpath.handler.errors import ExpectedError
from offpath.handler.parity import ParitySet, load_parity_set, measure_parity
from offpath.handler.pipeline import set_threads
from offpath.handler.stages import StageTimer
from offpath.handler.weights import make_with_weights
from offpath.profiling.core.child_process import obey

Answer = dict[str, Any]
# What `prepare` of engines_builder.py leaves.
WEIGHTS, ARTEFACTS = "weights.pt", "engine"
# Reference answers: on all the photographs, and on those that an archive's gate compares.
ALL, GATE = "all.npz", "gate.npz"
WARM_UP_RUNS = 2
# A window goes on until it has so many batches.
LEAST_RUNS = 3


class EngineProcess:
    """One engine from its load to its end."""

    def load(self, order: Mapping[str, Any]) -> Answer:
        """Makes the engine and answers one picture; `load_s` is what that took."""
        keep_freed_memory()
        set_threads(order["threads"])
        self._config = HandlerConfig.from_mapping(order["handler"], environ={})
        self._device = torch.device(order["device"])
        self._folder = Path(order["folder"])
        pictures = self._read_reference(ALL).pictures
        start = time.perf_counter()
        self._backend = self._make_backend(order)
        self._engine = Engine(
            self._backend, self._config, self._device, order["max_batch"]
        )
        self._engine.stage(0, pictures[0])
        self._engine.run(1, StageTimer())
        load_s = time.perf_counter() - start
        for slot in range(self._engine.max_batch):
            self._engine.stage(slot, pictures[slot % len(pictures)])
        return {"load_s": load_s}

    def _make_backend(self, order: Mapping[str, Any]) -> Backend:
        engine, precision = order["engine"], order["precision"]
        model = torch.nn.Module()  # only eager looks at it
        if engine == "eager":
            model = load_weights(order["model_module"], self._folder / WEIGHTS)
            model.to(self._device)
        return make_backend(
            *(engine, precision, model, self._config, self._device),
            *(artefact_folder(self._folder, engine, precision), order["threads"]),
        )

    def check(self, _: Mapping[str, Any]) -> Answer:
        """Compares the answers with eager fp32's, on all photographs."""
        return {
            name: asdict(
                measure_parity(self._backend, self._read_reference(file), self._device)
            )
            for name, file in (("all", ALL), ("gate", GATE))
        }

    def _read_reference(self, file: str) -> ParitySet:
        return load_parity_set(self._folder / file, self._config.image_size)

    def warm_up(self, order: Mapping[str, Any]) -> Answer:
        """A few batches of the size that comes next."""
        for _ in range(WARM_UP_RUNS):
            self._engine.run(order["batch_size"], StageTimer())
        return {}

    def forward(self, order: Mapping[str, Any]) -> Answer:
        """Batches for some seconds; `begin_s` is when, by the clock that all processes share."""
        seconds, batch_size = order["seconds"], order["batch_size"]
        time.sleep(max(0.0, order["begin_s"] - time.monotonic()))
        begin, cpu = time.perf_counter(), time.process_time()
        runs, elapsed_s = 0, 0.0
        while elapsed_s < seconds or runs < LEAST_RUNS:
            self._engine.run(batch_size, StageTimer())
            runs += 1
            elapsed_s = time.perf_counter() - begin
        return {
            "images": runs * batch_size,
            "elapsed_s": round(elapsed_s, 4),
            "cpu_s": round(time.process_time() - cpu, 4),
        }

    def explain(self, error: Exception) -> Answer:
        """An answer for what the engine raised."""
        if isinstance(error, (BackendUnavailable, ExpectedError)):
            return {"error": str(error), "traceback": ""}
        text = "".join(traceback.format_exception(error))
        return {"error": f"{type(error).__name__}: {error}", "traceback": text}


def artefact_folder(folder: Path, engine: str, precision: str) -> Path:
    """Where a variant's artefact lies; stands for the archive's engine folder."""
    return folder / f"{ARTEFACTS}-{engine}-{precision}"


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


if __name__ == "__main__":
    obey(EngineProcess())
