"""Fills the archive's `engine/` folder: what an engine needs beside the weights, checked.

On the CPU, `auto` makes OpenVINO's files where that package is installed and the model is heavy
enough to gain by it. Every other engine that the handler's `engine: auto` may choose needs no file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.flop_counter import FlopCounterMode

from offpath.archive import Say, say_nothing
from offpath.archive.engine_files.exporters import (
    export_openvino,
    prepend_normalisation,
    quantise,
    save_for_openvino,
)
from offpath.archive.models.onnx_model import OnnxModel
from offpath.archive.photograph_sets import PhotographSets
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.model.engines.choose import choose_precision, make_engine
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.engines.engine import (
    PARITY_FILE,
    PRECISIONS,
    EngineUnavailable,
    artefact_name,
)
from offpath.handler.model.outputs import activate
from offpath.handler.model.parity import Parity, ParitySet, measure_parity

# Floating-point operations per image above which OpenVINO's faster kernels outweigh its call.
HEAVY_FLOP = 50_000_000
# Engines that run a user's ONNX model.
ONNX_ENGINES = ("auto", "onnxruntime", "openvino")
CPU = torch.device("cpu")
PARITY_IMAGES = 16
PARITY_BATCH = 8


@dataclass(frozen=True)
class EnginePlan:
    """The engine that an archive is built for.

    Attributes:
        engine: never `auto`.
        precision: `auto` if the worker's processor decides.
        device_type: `cpu` or `gpu`.
    """

    engine: str
    precision: str = "auto"
    device_type: str = "cpu"


def plan_engine(config: HandlerConfig, device_type: str, model: torch.nn.Module) -> EnginePlan:
    """Chooses the engine where `engine` is `auto`, and the precision that its artefact has.

    Raises:
        WrongOption: the device or the precision rules the engine out.
    """
    engine, precision = config.engine, config.precision
    if isinstance(model, OnnxModel):
        _check_onnx(config)
    if engine == "auto":
        engine = _choose_engine(config, device_type, model)
    elif engine == "onnxruntime" and not isinstance(model, OnnxModel):
        raise WrongOption(
            "--engine onnxruntime runs models that are ONNX files; use openvino on a CPU, or eager"
        )
    _check_engine(engine, precision, device_type)
    if precision == "auto" and engine == "onnxruntime":
        precision = "fp32"
    return EnginePlan(engine, precision, device_type)


def _choose_engine(config: HandlerConfig, device_type: str, model: torch.nn.Module) -> str:
    if config.precision == "int8":
        return "openvino"
    has_openvino = (
        device_type == "cpu"
        and config.precision in ("auto", *PRECISIONS["openvino"])
        and importlib.util.find_spec("openvino") is not None
    )
    if isinstance(model, OnnxModel):
        return "openvino" if has_openvino else "onnxruntime"
    gains = (
        has_openvino
        and not has_torchscript(model)
        and count_flop(model, config.input_geometry) >= HEAVY_FLOP
    )
    return "openvino" if gains else "eager"


def _check_onnx(config: HandlerConfig) -> None:
    if config.engine not in ONNX_ENGINES or config.precision == "int8":
        raise WrongOption(
            f"--engine {config.engine} --precision {config.precision}: an ONNX model is run by "
            "onnxruntime in fp32, or by openvino in fp32 or bf16"
        )
    if config.explanations:
        raise WrongOption(
            "handler.explanations is true, and explanations need the gradients of a PyTorch model, "
            "which an ONNX model does not have; leave them out, or archive the PyTorch model"
        )


def _check_engine(engine: str, precision: str, device_type: str) -> None:
    accepted = PRECISIONS[engine]
    if precision not in ("auto", *accepted):
        raise WrongOption(f"--precision {precision!r}: --engine {engine} has {', '.join(accepted)}")
    if engine == "openvino" and device_type == "gpu":
        raise WrongOption(
            "--engine openvino runs on the CPU, and deviceType is 'gpu'; use --preset cpu, or "
            "--engine eager"
        )


def has_torchscript(model: torch.nn.Module) -> bool:
    """Returns True for TorchScript, also inside another module; it cannot be exported."""
    return any(isinstance(part, torch.jit.ScriptModule) for part in model.modules())


def count_flop(model: torch.nn.Module, geometry: InputGeometry) -> int:
    """Counts the floating-point operations of convolutions and matrix products for one image."""
    height, width, channels = geometry.shape
    model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, channels, height, width))
    return int(counter.get_total_flops())


def build_engine_folder(
    plan: EnginePlan,
    model: torch.nn.Module,
    config: HandlerConfig,
    photographs: PhotographSets,
    folder: Path,
    say: Say = say_nothing,
) -> None:
    """Fills an archive's `engine/` folder; makes no folder for eager fp32, which needs no file.

    Args:
        model: maps normalised float32 [batch, channels, height, width] to logits; on the CPU.
        photographs: for calibration, and to check the answers on.
        folder: created if missing.
        say: told what was measured or left out.

    Raises:
        ExpectedError: a package is missing, the model cannot be exported, or answers differ from
            those of eager fp32 by more than `config.parity_bound`.
    """
    if (plan.engine, plan.precision) != ("eager", "fp32"):
        folder.mkdir(parents=True, exist_ok=True)
        model.eval()  # on its own line: a class may override it and return nothing
        _EngineFolder(plan, model, config, folder, say).fill(photographs)


@dataclass(frozen=True)
class _EngineFolder:
    plan: EnginePlan
    model: torch.nn.Module
    config: HandlerConfig
    folder: Path
    say: Say

    def fill(self, photographs: PhotographSets) -> None:
        precision = "fp32" if self.plan.precision == "auto" else self.plan.precision
        name = artefact_name(self.plan.engine, precision)
        if name is not None:
            self.say(f"engine {self.plan.engine} {precision}: building it; this can take minutes")
            if precision == "int8":
                self._quantise(self.folder / name, photographs.calibration)
            else:
                self._export(self.folder / name)
        parity = make_parity_set(self.model, self.config, photographs.held_out)
        # Equal sets give equal bytes.
        np.savez(self.folder / PARITY_FILE, **vars(parity))
        if name is not None:
            self._check(parity, precision)
        if self.plan.precision == "auto" and self.plan.device_type == "cpu":
            served = choose_precision(CPU)
            if served != precision:
                self._check(parity, served, is_own=False)

    def _export(self, path: Path) -> None:
        if has_torchscript(self.model):
            raise WrongOption(
                f"--engine {self.plan.engine} cannot be made from TorchScript; pass the model's "
                "Python file with --weights, or use --engine eager"
            )
        if isinstance(self.model, OnnxModel):
            self._convert_onnx(self.model.path, path)
        else:
            export_openvino(self.model, self.config, path)

    def _convert_onnx(self, source: Path, path: Path) -> None:
        if self.plan.engine == "onnxruntime":
            prepend_normalisation(source, self.config, path)
            return
        with tempfile.TemporaryDirectory(prefix="offpath-onnx-") as scratch:
            prepended = Path(scratch) / "model.onnx"
            prepend_normalisation(source, self.config, prepended)
            save_for_openvino(str(prepended), path)

    def _quantise(self, path: Path, calibration: Pixels) -> None:
        # The quantiser's choice is judged on the calibration set: the photographs held out are
        # kept for the final check.
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

    def _check(self, parity: ParitySet, precision: str, is_own: bool = True) -> None:
        """Holds an engine to the bound that the worker's parity gate will apply.

        Args:
            is_own: False for the precision that `auto` becomes on a processor like this one, where
                workers run fp32 if the comparison fails.
        """
        label = f"engine {self.plan.engine} {precision}"
        try:
            found = self._measure(self.folder, parity, precision)
        except EngineUnavailable as error:
            self.say(f"{label} cannot be checked here ({error}); the worker will check it")
            return
        result = (
            f"on {found.images} photographs it moves a probability by up to "
            f"{found.largest_move:.1g} and changes the best class of "
            f"{found.top1_changes or 'none'} of them"
        )
        does_hold = found.holds(self.config.parity_bound)
        if is_own and not does_hold:
            raise ExpectedError(
                f"{label} gives other answers than eager fp32: {result} (handler.parity_bound is "
                f"{self.config.parity_bound}); use another --precision, or allow more with "
                "--set parity_bound=..."
            )
        if not is_own:
            served = f"{precision} (or --precision fp32)" if does_hold else "fp32"
            result += f". Workers on a processor like this one run {served}"
        self.say(f"{label}: {result}")

    def _measure(self, folder: Path, parity: ParitySet, precision: str) -> Parity:
        name, threads = self.plan.engine, os.cpu_count() or 1
        engine = make_engine(name, precision, self.model, self.config, CPU, folder, threads)
        return measure_parity(engine, parity, self.config, CPU)


def make_parity_set(
    model: torch.nn.Module,
    config: HandlerConfig,
    candidates: Pixels,
) -> ParitySet:
    """Chooses 16 candidates, those with a clear answer first, with eager fp32's answers.

    Args:
        model: maps normalised float32 [batch, channels, height, width] to outputs.
        candidates: uint8 [n, height, width, channels].
    """
    engine = EagerEngine(model, config, CPU)
    with torch.inference_mode():
        answers = [
            activate(engine(images), config.activation)
            for images in torch.from_numpy(candidates).split(PARITY_BATCH)
        ]
    probabilities = torch.cat(answers).numpy()
    chosen = choose_clear(probabilities, config.parity_bound)
    return ParitySet(candidates[chosen], probabilities[chosen])


def choose_clear(probabilities: npt.NDArray[np.float32], bound: float) -> npt.NDArray[np.int64]:
    """Chooses the images to compare on: those whose best two classes differ by more than `bound`.

    Closer classes may swap within the bound (eager itself swaps some of them at another batch
    size), so a changed best class would mean nothing. If fewer than 16 images are clear, the
    clearest of the others follow.

    Returns:
        Indices, ascending.
    """
    best = np.sort(probabilities, axis=1)[:, -2:]
    margin = best[:, -1] - best[:, 0] if best.shape[1] > 1 else best[:, 0]
    clear = np.flatnonzero(margin > bound)
    if len(clear) > PARITY_IMAGES:
        # Spread over the candidates instead of the clearest ones, which hardly move at all.
        spread = np.linspace(0, len(clear) - 1, PARITY_IMAGES).round()
        return clear[spread.astype(np.int64)].astype(np.int64)
    clearest: npt.NDArray[np.int64] = np.argsort(-margin, kind="stable")
    return np.sort(clearest[:PARITY_IMAGES])
