"""Models as users have them, and the answers of plain PyTorch and torchvision."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

LABELS = ["bent", "crack", "dent", "fine", "rust", "scratch"]
# Scale of the last layer's weights: images differ in their answers, and mistakes show.
SPREAD = 20
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# A user's file. The models to compare with are made from the same text.
NETS = """
import torch
from torch import nn


def make_layers(channels):
    return [
        nn.Conv2d(channels, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 6)]


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*make_layers(3))


def make_grey_tags():
    return nn.Sequential(*make_layers(1), nn.Sigmoid())
"""
NET = NETS.partition("def make_grey_tags")[0]


def softmax(outputs: torch.Tensor) -> torch.Tensor:
    return torch.softmax(outputs, 0)


@dataclass(frozen=True)
class Journey:
    """One model, the options for its archive, and how to run it without offpath.

    Attributes:
        make: makes the model, with random weights.
        archive: options of `offpath archive`, besides those that all models have.
        save: makes the content of the weights file from the state dict.
        said: texts that the builder must print.
        pixels: torchvision's preprocessing for the model.
        score: turns outputs into scores.
    """

    make: Callable[[], nn.Module]
    archive: tuple[str, ...]
    save: Callable[[dict[str, torch.Tensor]], object] = lambda weights: weights
    said: tuple[str, ...] = ()
    pixels: v2.Compose = field(default_factory=lambda: preprocess(v2.Resize(256), 224))
    score: Callable[[torch.Tensor], torch.Tensor] = softmax


def preprocess(
    resize: nn.Module, size: int, mean: tuple[float, ...] = MEAN, channels: int = 3
) -> v2.Compose:
    """Preprocesses as training does."""
    steps: list[nn.Module] = [v2.Grayscale()] if channels == 1 else []
    steps += [resize, v2.CenterCrop(size), v2.PILToTensor()]
    std = STD if channels == 3 else mean
    scale = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([*steps, scale, v2.Normalize(mean, std)])


def take(name: str) -> Callable[[], nn.Module]:
    """Returns a class or a function of the user's file."""
    scope: dict[str, Callable[[], nn.Module]] = {"__name__": "nets"}
    exec(NETS, scope)
    return scope[name]


def wrap_as_ddp(weights: dict[str, torch.Tensor]) -> object:
    """A Lightning-like checkpoint of a DistributedDataParallel: the averages are not taken."""
    spoilt = {f"module.{name}": torch.zeros_like(it) for name, it in weights.items()}
    trained = {f"module.{name}": it for name, it in weights.items()}
    return {"epoch": 7, "state_dict": trained, "ema": spoilt, "optimizer": {"lr": 0.1}}


JOURNEYS = {
    "net": Journey(take("Net"), ("--model", "net.py")),
    "tags": Journey(
        take("make_grey_tags"),
        ("--model", "nets.py:make_grey_tags", "--set", "activation=auto", "--set", "channels=1")
        + ("--set", "mean=0.5", "--set", "std=0.5")
        + ("--set", "image_size=384", "--set", "resize=stretch"),
        save=wrap_as_ddp,
        said=("activation auto: none", "removed 'module.' from the start of every name"),
        pixels=preprocess(v2.Resize((384, 384)), 384, (0.5,), channels=1),
        score=lambda outputs: outputs,
    ),
}


def make_model(name: str, journey: Journey) -> nn.Module:
    """Makes a model, with the same random weights each time."""
    torch.manual_seed(sorted(JOURNEYS).index(name))
    model = journey.make().eval()
    last = [it for it in model.modules() if isinstance(it, nn.Linear)][-1]
    with torch.inference_mode():
        last.weight *= SPREAD
    return model


def write_weights(name: str, file: Path) -> None:
    """Writes the file that training would have left."""
    journey = JOURNEYS[name]
    torch.save(journey.save(make_model(name, journey).state_dict()), file)


def ask_torch(name: str, photograph: bytes) -> dict[str, float]:
    """Asks plain PyTorch; returns label -> score, best first."""
    journey = JOURNEYS[name]
    image = Image.open(io.BytesIO(photograph)).convert("RGB")
    with torch.inference_mode():
        outputs = make_model(name, journey)(journey.pixels(image)[None])[0]
    scores = journey.score(outputs).tolist()
    ranked = sorted(zip(LABELS, scores), key=lambda pair: -pair[1])
    return dict(ranked)
