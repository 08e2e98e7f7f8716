"""Chooses the engine of a worker and holds its predictions to eager fp32's.

`engine: auto` takes OpenVINO if the archive holds its graph and the package is installed, and eager
otherwise. `precision: auto` is fp16 on CUDA, bf16 where the processor
multiplies it in hardware, and fp32 otherwise; int8 is only used when the settings ask for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.engines.engine import (
    PRECISIONS,
    Engine,
    EngineUnavailable,
    has_artefact,
)
from offpath.handler.model.engines.onnx_runtime import OnnxRuntimeEngine
from offpath.handler.model.engines.open_vino import OpenVinoEngine
from offpath.handler.model.parity import Parity, load_parity_set, measure_parity

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The engine of a worker.

    Attributes:
        engine: ready to be called.
        parity: result of the comparison with eager fp32; None without one (the engine is eager
            fp32 itself, or the archive holds no photographs).
        refused: reasons why earlier candidates were not taken, in order.
        lost: those reasons that concern an engine which the archive was built for: its predictions
            were too far from eager fp32's, or its package is missing here.
    """

    engine: Engine
    parity: Parity | None
    refused: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "engine": self.engine.name,
            "precision": self.engine.precision,
            "engines_refused": list(self.refused),
            "engines_lost": list(self.lost),
        }
        if self.parity is not None:
            described["parity"] = asdict(self.parity)
        return described


def choose_engine(
    model: torch.nn.Module,
    config: HandlerConfig,
    device: torch.device,
    folder: Path | None,
    threads: int,
) -> Choice:
    """Loads the configured engine, or the best available one, and checks its predictions.

    Args:
        model: maps float32 [batch, channels, height, width] to logits; already on `device`.
        config: gives `engine`, `precision`, `parity_bound`, size, mean and std.
        folder: the archive's engine folder; may be missing.
        threads: threads of the engine on the CPU.

    An engine that fails the parity gate is tried again in fp32, and then replaced by eager fp32.

    Raises:
        ConfigError: the configured engine cannot run here.
    """
    refused: list[str] = []
    lost: list[str] = []
    waiting = deque(_candidates(config, device))
    while waiting:
        name, precision = waiting.popleft()
        try:
            engine = make_engine(name, precision, model, config, device, folder, threads)
        except EngineUnavailable as error:
            if config.engine != "auto" and not refused:
                raise ConfigError(f"handler.engine is {name!r}: {error}") from error
            is_lost = has_artefact(folder, name, precision)
            # An engine of the same precision that needs no file may follow.
            if config.precision != "auto" and (is_lost or not waiting):
                logger.warning("%s", error)
            refused.append(str(error))
            if is_lost:
                lost.append(str(error))
            continue
        complaint, parity = None, None
        if (name, precision) != ("eager", "fp32"):
            complaint, parity = _check(engine, config, device, folder)
        if complaint is None:
            return Choice(engine, parity, tuple(refused), tuple(lost))
        logger.warning("%s", complaint)
        refused.append(complaint)
        if parity is not None:
            lost.append(complaint)
        if precision != "fp32":
            waiting.appendleft((name, "fp32"))
    engine = EagerEngine(model, config, device)
    return Choice(engine, None, tuple(refused), tuple(lost))


def make_engine(
    name: str,
    precision: str,
    model: torch.nn.Module,
    config: HandlerConfig,
    device: torch.device,
    folder: Path | None,
    threads: int,
) -> Engine:
    """Makes one engine by name.

    Raises:
        EngineUnavailable: the engine lacks the precision, its file in `folder` or its package.
    """
    if precision not in PRECISIONS[name]:
        raise EngineUnavailable(
            f"engine {name} has no precision {precision}; it has {', '.join(PRECISIONS[name])}"
        )
    if name == "eager":
        return EagerEngine(model, config, device, precision)
    if name == "openvino":
        return OpenVinoEngine(folder, precision, threads)
    return OnnxRuntimeEngine(folder, precision, device, threads)


def choose_precision(device: torch.device) -> str:
    """Returns the precision that `precision: auto` means on a device."""
    if device.type == "cuda":
        return "fp16"
    # Without these instructions the processor would convert each bf16 product from and to fp32.
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if has_bf16 else "fp32"


def _candidates(config: HandlerConfig, device: torch.device) -> Iterator[tuple[str, str]]:
    precision = config.precision
    if precision == "auto":
        precision = choose_precision(device)
    if config.engine != "auto":
        if config.precision == "auto" and precision not in PRECISIONS[config.engine]:
            precision = "fp32"
        yield config.engine, precision
        return
    if device.type == "cpu" and precision in PRECISIONS["openvino"]:
        yield "openvino", precision
    if precision in PRECISIONS["eager"]:
        yield "eager", precision


def _check(
    engine: Engine, config: HandlerConfig, device: torch.device, folder: Path | None
) -> tuple[str | None, Parity | None]:
    """Returns (reason not to use the engine or None, comparison or None)."""
    label = f"engine {engine.name} {engine.precision}"
    reference = load_parity_set(folder, config)
    if reference is None:
        complaint = f"{label}: no photographs in the archive to check it with"
        if engine.precision == "fp32" or config.precision != "auto":
            logger.warning("%s", complaint)
            return None, None
        return complaint, None
    parity = measure_parity(engine, reference, config, device)
    if parity.holds(config.parity_bound):
        return None, parity
    return (
        f"{label} is not used: on {parity.images} photographs it "
        f"changed {parity.top1_changes} best classes and moved a probability by "
        f"{parity.largest_move:.3f} (handler.parity_bound is {config.parity_bound})"
    ), parity
