"""The archive's `engine/` folder: what a back end needs beside the weights, made and checked here.

`auto` on the CPU takes OpenVINO where that is installed and the model is heavy enough to gain by
it. Everything else the handler's `engine: auto` finds without an artefact.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from offpath.archive.engines.calibration import PhotographSets, load_photographs
from offpath.archive.engines.exporters import (
    EXAMPLE_BATCH,
    export_compiled,
    export_onnx,
    export_openvino,
    wrap_model,
)
from offpath.archive.engines.parity import make_parity_set, write_parity_file
from offpath.archive.engines.quantisation import quantise
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.image.decode import Pixels
from offpath.handler.image.geometry import Square
from offpath.handler.model.engines import PRECISIONS, BackendUnavailable
from offpath.handler.model.engines.artefacts import PARITY_FILE, artefact_name
from offpath.handler.model.engines.choose import make_backend
from offpath.handler.model.parity import Parity, ParitySet, measure_parity

# Floating-point operations per picture from which OpenVINO's quicker kernels outweigh its call.
HEAVY_FLOP = 50_000_000
# Whose one artefact, or none, serves all precisions that a processor has.
FOLLOWS_PROCESSOR = ("eager", "openvino")
EXPORTS = {
    "compiled": export_compiled,
    "onnxruntime": export_onnx,
    "tensorrt": export_onnx,
    "openvino": export_openvino,
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class EngineBuild:
    """Which back end an archive is made for.

    Attributes:
        engine, precision: as in the `handler:` section; `auto` where left open.
        device_type: `cpu` or `gpu`.
        calibrate: folder of photographs; None for those that ship in PyPI packages.
    """

    engine: str = "auto"
    precision: str = "auto"
    device_type: str = "cpu"
    calibrate: Path | None = None

    def resolve(self, model: torch.nn.Module, square: Square) -> EngineBuild:
        """With an engine in place of `auto`, and the precision that its artefact has.

        Raises:
            ExpectedError: an engine that the device or the precision rules out.
        """
        chosen = self if self.engine != "auto" else self._choose(model, square)
        chosen._check()
        if chosen.precision != "auto" or chosen.engine in FOLLOWS_PROCESSOR:
            return chosen
        has_fp16 = "fp16" in PRECISIONS[chosen.engine]
        on_gpu = chosen.device_type == "gpu"
        return replace(chosen, precision="fp16" if on_gpu and has_fp16 else "fp32")

    def _choose(self, model: torch.nn.Module, square: Square) -> EngineBuild:
        if self.precision == "int8":
            return replace(self, engine="openvino")
        gains = (
            self.device_type == "cpu"
            and self.precision in ("auto", *PRECISIONS["openvino"])
            and importlib.util.find_spec("openvino") is not None
            and not isinstance(model, torch.jit.ScriptModule)
            and count_flop(model, square) >= HEAVY_FLOP
        )
        return replace(self, engine="openvino" if gains else "eager")

    def _check(self) -> None:
        accepted = PRECISIONS[self.engine]
        if self.precision not in ("auto", *accepted):
            raise WrongOption(
                f"--precision {self.precision!r}: --engine {self.engine} has "
                f"{', '.join(accepted)}"
            )
        if self.engine == "openvino" and self.device_type == "gpu":
            raise WrongOption(
                "--engine openvino runs on the CPU, and deviceType is 'gpu'; use --preset cpu, or "
                "--engine onnxruntime, tensorrt, compiled or eager"
            )
        if self.engine == "tensorrt" and self.device_type != "gpu":
            raise WrongOption(
                f"--engine tensorrt needs a CUDA device, and deviceType is {self.device_type!r}; "
                "use --preset t4"
            )


def plan_engine(
    config: dict[str, Any], model: torch.nn.Module, calibrate: Path | None
) -> EngineBuild:
    """What a checked model-config.yaml asks for.

    Where it names an engine whose artefact has one precision, and no precision, the section gets
    that one: the worker's `auto` might want another. An `auto` engine stays for the worker, which
    falls back where OpenVINO is not installed.

    Raises:
        ExpectedError: an engine that the device or the precision rules out.
    """
    handler = HandlerConfig.from_mapping(config["handler"], environ={})
    device_type = config.get("deviceType", "cpu")
    wanted = EngineBuild(handler.engine, handler.precision, device_type, calibrate)
    build = wanted.resolve(model, handler.square)
    if handler.engine != "auto" and build.precision != handler.precision:
        config["handler"]["precision"] = build.precision
    return build


def count_flop(model: torch.nn.Module, square: Square) -> int:
    """Floating-point operations of convolutions and matrix products for one picture."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, square.channels, square.size, square.size))
    return int(counter.get_total_flops())


def build_engine_folder(
    build: EngineBuild,
    model: torch.nn.Module,
    config: HandlerConfig,
    folder: Path,
    say: Say = lambda line: None,
) -> None:
    """Fills an archive's `engine/` folder; leaves it out where there is nothing to put in.

    Args:
        build: resolved.
        model: maps normalised float32 [batch, channels, size, size] to logits; on the CPU.
        config: the `handler:` section.
        folder: made where it is missing.
        say: told what was measured or left out.

    Raises:
        ExpectedError: a missing package, a model that cannot be exported, no photographs for int8,
            or answers that differ from eager fp32's by more than `config.parity_bound`.
    """
    if (build.engine, build.precision) == ("eager", "fp32"):
        return  # the reference itself
    photographs = load_photographs(build.calibrate, config, build.precision == "int8")
    folder.mkdir(parents=True, exist_ok=True)
    _EngineFolder(build, model.eval(), config, folder, say).fill(photographs)


@dataclass(frozen=True)
class _EngineFolder:
    build: EngineBuild
    model: torch.nn.Module
    config: HandlerConfig
    folder: Path
    say: Say

    def fill(self, photographs: PhotographSets) -> None:
        precision = "fp32" if self.build.precision == "auto" else self.build.precision
        name = artefact_name(self.build.engine, precision)
        if name is not None and precision == "int8":
            self._quantise(self.folder / name, photographs.calibration)
        elif name is not None:
            self._export(self.folder / name)
        parity = make_parity_set(self.model, self.config, photographs.held_out)
        write_parity_file(self.folder / PARITY_FILE, parity)
        if name is not None:
            self._check(parity, precision)

    @property
    def _device(self) -> torch.device:
        """Where the artefact is made: machine code alone is made on its device."""
        on_gpu = self.build.device_type == "gpu" and self.build.engine == "compiled"
        if on_gpu and not torch.cuda.is_available():
            raise WrongOption(
                "--engine compiled with deviceType 'gpu' is built on a machine with that GPU, and "
                "none is here; use another engine, or --preset cpu"
            )
        return torch.device("cuda" if on_gpu else "cpu")

    def _export(self, path: Path) -> None:
        if isinstance(self.model, torch.jit.ScriptModule):
            raise WrongOption(
                f"--engine {self.build.engine} cannot be made from TorchScript; pass the model's "
                "Python file with --weights, or use --engine eager"
            )
        precision = path.name.split(".")[1]  # model.<precision>.<suffix>
        wrapped = wrap_model(self.model, self.config, precision, self._device)
        shape = self.config.square.shape
        pictures = torch.zeros((EXAMPLE_BATCH, *shape), dtype=torch.uint8)
        EXPORTS[self.build.engine](wrapped, pictures.to(self._device), path)

    def _quantise(self, path: Path, calibration: Pixels) -> None:
        # Judged on photographs that calibrated it: those held out are for the verdict.
        shown = make_parity_set(self.model, self.config, calibration)
        with tempfile.TemporaryDirectory(prefix="offpath-int8-") as scratch:
            source = Path(scratch) / path.name.replace("int8", "fp32")
            self._export(source)
            made = quantise(
                source,
                path.name,
                calibration,
                self.config.parity_bound,
                lambda folder: self._measure(folder, shown, "int8"),
                self.say,
            )
            for file in made.iterdir():
                shutil.copyfile(file, self.folder / file.name)

    def _check(self, parity: ParitySet, precision: str) -> None:
        """Holds the artefact to the bound that the worker's gate will hold it to."""
        label = f"engine {self.build.engine} {precision}"
        try:
            found = self._measure(self.folder, parity, precision)
        except BackendUnavailable as error:
            self.say(f"{label} is not checked here ({error}); the worker will do it")
            return
        said = (
            f"on {found.pictures} photographs it moves a probability by "
            f"{found.largest_move:.1g} and changes {found.top1_changes} best classes"
        )
        if not found.holds(self.config.parity_bound):
            raise ExpectedError(
                f"{label} answers otherwise than eager fp32: {said} (handler.parity_bound is "
                f"{self.config.parity_bound}); use another --precision, or allow more with "
                "--set parity_bound=..."
            )
        self.say(f"{label}: {said}")

    def _measure(self, folder: Path, parity: ParitySet, precision: str) -> Parity:
        engine, device, threads = self.build.engine, self._device, os.cpu_count() or 1
        backend = make_backend(
            engine, precision, self.model, self.config, device, folder, threads
        )
        return measure_parity(backend, parity, self.config, device)
