"""What the model's outputs are, seen on photographs: decides `activation: auto`, warns of doubles.

Many models end with their own softmax or sigmoid; another one on top flattens every answer, and
nothing fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offpath.archive.engines.calibration import load_photographs
from offpath.archive.model_input import count_classes
from offpath.archive.sources.checkpoint import Say
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import WrongOption
from offpath.handler.image.decode import Pixels
from offpath.handler.model.engines.eager import EagerBackend

# A softmax or a sigmoid shows on any picture; a few suffice.
PICTURES = 6
# How far the sum of a softmax may be from 1: half precision inside.
SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Outputs:
    """What a model's outputs look like.

    Attributes:
        classes: how many there are.
        low, high: the least and the largest.
        sums_to_one: those of each picture do.
    """

    classes: int
    low: float
    high: float
    sums_to_one: bool

    @property
    def are_scores(self) -> bool:
        """Whether all lie between 0 and 1, as after a softmax or a sigmoid."""
        return 0.0 <= self.low and self.high <= 1.0

    @property
    def described(self) -> str:
        """For a sentence about the outputs."""
        if not self.are_scores:
            return f"no probabilities ({self.low:.3g} to {self.high:.3g})"
        if self.is_distribution:
            return "probabilities that sum to 1, as after a softmax"
        return "between 0 and 1 without summing to 1, as after a sigmoid"

    @property
    def is_distribution(self) -> bool:
        """Whether they are probabilities of classes that exclude each other."""
        return self.are_scores and self.sums_to_one and self.classes > 1


def settle_head(
    config: dict[str, Any], model: torch.nn.Module, calibrate: Path | None, say: Say
) -> None:
    """Puts the activation that fits in place of `auto` in a model-config.yaml, or warns.

    Args:
        config: its checked content.
        model: maps normalised float32 [batch, channels, size, size] to outputs.
        calibrate: folder of photographs; None for those that ship in PyPI packages.
        say: told what was decided, or what looks wrong; a line each.

    Raises:
        WrongOption: the model does not take the pictures that the settings make, or `threshold`
            does not go with what was decided.
    """
    handler = HandlerConfig.from_mapping(config["handler"], environ={})
    count_classes(model, handler.square)  # or say why not, before it fails in here
    outputs = look_at_outputs(model, handler, find_pictures(calibrate, handler))
    if handler.activation != "auto":
        doubt = find_doubt(outputs, handler.activation)
        if doubt is not None:
            say(f"warning: {doubt}")
        return
    chosen = choose_activation(outputs)
    if chosen == "softmax" and handler.threshold is not None:
        raise WrongOption(
            f"activation auto is softmax here (the outputs are {outputs.described}), which takes "
            "no threshold; use --set activation=sigmoid for several labels a picture"
        )
    config["handler"]["activation"] = chosen
    say(f"activation auto: {chosen}; the model's outputs are {outputs.described}")


def choose_activation(outputs: Outputs) -> str:
    """What `auto` stands for."""
    if outputs.are_scores:
        return "none"
    return "softmax" if outputs.classes > 1 else "sigmoid"


def find_doubt(outputs: Outputs, activation: str) -> str | None:
    """Why an activation is probably not what this model needs."""
    if outputs.are_scores and activation != "none":
        return (
            f"the model's outputs are {outputs.described}, and activation is {activation}: a "
            "second one flattens every answer; use --set activation=none"
        )
    if outputs.classes == 1 and activation == "softmax":
        return "softmax of one class is always 1; use --set activation=sigmoid"
    if not outputs.are_scores and activation == "none":
        return (
            f"the model's outputs are {outputs.described}, and activation is none: they are "
            "answered as they are; use --set activation=softmax or sigmoid"
        )
    return None


def find_pictures(calibrate: Path | None, config: HandlerConfig) -> Pixels:
    """A few photographs as the model's squares."""
    found = load_photographs(calibrate, config).held_out
    return found[:: -(-len(found) // PICTURES)]


def look_at_outputs(
    model: torch.nn.Module, config: HandlerConfig, pictures: Pixels
) -> Outputs:
    """Runs the model in eager fp32, a picture at a time."""
    backend = EagerBackend(model.eval(), config, torch.device("cpu"))
    with torch.inference_mode():
        rows = [backend(p).float() for p in torch.from_numpy(pictures).split(1)]
    outputs = torch.cat(rows)
    return Outputs(
        classes=outputs.shape[1],
        low=float(outputs.min()),
        high=float(outputs.max()),
        sums_to_one=bool(((outputs.sum(1) - 1).abs() <= SUM_TOLERANCE).all()),
    )
