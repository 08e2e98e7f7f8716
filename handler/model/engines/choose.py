"""Which back end a worker runs, and the gate that holds it to eager fp32's answers.

`engine: auto` takes OpenVINO or ONNX Runtime where the archive holds their graph and the package
is installed, eager otherwise. `precision: auto` is fp16 on CUDA, bf16 where the processor
multiplies it, fp32 otherwise; int8 must be asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines import PRECISIONS, Backend, BackendUnavailable
from offpath.handler.model.engines.artefacts import PARITY_FILE
from offpath.handler.model.engines.compiled import CompiledBackend
from offpath.handler.model.engines.eager import EagerBackend
from offpath.handler.model.engines.onnx_runtime import OnnxRuntimeBackend
from offpath.handler.model.engines.open_vino import OpenVinoBackend
from offpath.handler.model.parity import Parity, load_parity_set, measure_parity

logger = logging.getLogger(__name__)

# `compiled` is not among them: its code is made for one processor.
AUTO_ON_CPU = ("openvino", "onnxruntime")


@dataclass(frozen=True)
class Choice:
    """What a worker runs.

    Attributes:
        backend: ready to be called.
        parity: how it compared; None where there was nothing to compare (eager fp32 is the
            reference, or the archive holds no photographs).
        refused: why those before it were not taken, in order.
        failed_gate: how many of them answered too unlike eager fp32.
    """

    backend: Backend
    parity: Parity | None
    refused: tuple[str, ...] = ()
    failed_gate: int = 0

    def describe(self) -> dict[str, Any]:
        """What answers and how it compared with eager fp32; for `describe_handle`."""
        described: dict[str, Any] = {
            "engine": self.backend.name,
            "precision": self.backend.precision,
            "engines_refused": list(self.refused),
        }
        if self.parity is not None:
            described["parity"] = asdict(self.parity)
        return described


def choose_backend(
    model: torch.nn.Module,
    config: HandlerConfig,
    device: torch.device,
    folder: Path | None,
    threads: int,
) -> Choice:
    """Loads the configured back end, or the best that is there, and checks its answers.

    Args:
        model: maps float32 [batch, 3, size, size] to logits; already on `device`.
        config: `engine`, `precision`, `parity_bound`, size, mean and std.
        folder: the archive's engine folder; may be missing.
        threads: of each back end on the CPU.

    Raises:
        ConfigError: the engine asked for cannot run here. One that runs and fails the gate is
            replaced by eager fp32, with a warning.
    """
    refused: list[str] = []
    failed_gate = 0
    for engine, precision in _candidates(config, device):
        try:
            backend = make_backend(
                engine, precision, model, config, device, folder, threads
            )
        except BackendUnavailable as error:
            if config.engine != "auto":
                raise ConfigError(f"handler.engine is {engine!r}: {error}") from error
            if config.precision != "auto":
                logger.warning("%s", error)
            refused.append(str(error))
            continue
        if (engine, precision) == ("eager", "fp32"):
            return Choice(backend, None, tuple(refused), failed_gate)
        complaint, parity = _check(backend, config, device, folder)
        if complaint is None:
            return Choice(backend, parity, tuple(refused), failed_gate)
        logger.warning("%s", complaint)
        refused.append(complaint)
        failed_gate += parity is not None
    return Choice(
        EagerBackend(model, config, device), None, tuple(refused), failed_gate
    )


def make_backend(
    engine: str,
    precision: str,
    model: torch.nn.Module,
    config: HandlerConfig,
    device: torch.device,
    folder: Path | None,
    threads: int,
) -> Backend:
    """One back end by name.

    Raises:
        BackendUnavailable: no such precision, no artefact in `folder`, no package.
    """
    if precision not in PRECISIONS[engine]:
        raise BackendUnavailable(
            f"{engine} has no precision {precision}; it has {', '.join(PRECISIONS[engine])}"
        )
    if engine == "eager":
        return EagerBackend(model, config, device, precision)
    if engine == "compiled":
        return CompiledBackend(folder, precision, device)
    if engine == "openvino":
        return OpenVinoBackend(folder, precision, threads)
    return OnnxRuntimeBackend(engine, folder, precision, device, threads)


def choose_precision(device: torch.device) -> str:
    """What `precision: auto` stands for on a device."""
    if device.type == "cuda":
        return "fp16"
    # Without these the processor would convert each bf16 product from and to fp32.
    has_bf16 = (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )
    return "bf16" if has_bf16 else "fp32"


def _candidates(
    config: HandlerConfig, device: torch.device
) -> Iterator[tuple[str, str]]:
    precision = config.precision
    if precision == "auto":
        precision = choose_precision(device)
    if config.engine != "auto":
        if config.precision == "auto" and precision not in PRECISIONS[config.engine]:
            precision = "fp32"
        yield config.engine, precision
        return
    for engine in AUTO_ON_CPU if device.type == "cpu" else ():
        if precision in PRECISIONS[engine]:
            yield engine, precision
    if precision in PRECISIONS["eager"]:
        yield "eager", precision


def _check(
    backend: Backend, config: HandlerConfig, device: torch.device, folder: Path | None
) -> tuple[str | None, Parity | None]:
    """Why the back end must not be used, if so, and how it compared."""
    label = f"engine {backend.name} {backend.precision}"
    path = folder / PARITY_FILE if folder else None
    if path is None or not path.is_file():
        if backend.precision == "fp32" or config.precision != "auto":
            logger.warning("%s: no photographs in the archive to check it with", label)
            return None, None
        return f"{label}: no photographs in the archive to check it with", None
    reference = load_parity_set(path, config.image_size, config.channels)
    parity = measure_parity(backend, reference, config, device)
    if parity.holds(config.parity_bound):
        return None, parity
    return (
        f"{label} is not used, eager fp32 answers instead: on {parity.pictures} photographs it "
        f"changed {parity.top1_changes} best classes and moved a probability by "
        f"{parity.largest_move:.3f} (handler.parity_bound is {config.parity_bound})"
    ), parity
