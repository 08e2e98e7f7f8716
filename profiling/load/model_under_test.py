"""The model that all servers of a run share: same weights, same labels, same preprocessing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import WrongOption
from offpath.handler.model.activation import activate
from offpath.profiling.load.archived_model import identify_archive, load_archived_model


@dataclass(frozen=True)
class ModelUnderTest:
    """An embedded model with seeded weights and ImageNet's labels, or the user's.

    Attributes:
        reference: what `load_model` takes, in any process.
        name: for results: an archive's has its checksum, and no folder.
    """

    reference: str
    name: str
    source: ModelSource

    @property
    def config(self) -> HandlerConfig:
        """Its preprocessing."""
        return HandlerConfig.from_mapping(self.source.handler, environ={})

    @property
    def labels(self) -> list[str]:
        """Names by class index."""
        if self.source.labels is None:
            raise WrongOption(
                f"model {self.name!r} has no labels: answers cannot be compared"
            )
        return self.source.labels

    @property
    def top_k(self) -> int:
        """Classes in an answer: the stock handler's five, or as many as there are."""
        return min(self.config.top_k, len(self.labels))

    @property
    def model_file(self) -> Path:
        """Its definition."""
        if self.source.model_file is None:
            raise WrongOption(
                f"model {self.name!r} is TorchScript: the benchmark needs a class"
            )
        return self.source.model_file

    def make_transforms(self) -> transforms.Compose:
        """torchvision's, from a Pillow picture: what the stock handler and all examples do.

        Raises:
            WrongOption: a model fed by a letterbox, which none of them does.
        """
        geometry = self.config.input_geometry
        if geometry.resize == "letterbox":
            raise WrongOption(
                f"model {self.name!r} has resize: letterbox, which no other server's example does; "
                "it cannot be compared"
            )
        sides = (geometry.resize_size, geometry.resize_size)
        filtered = transforms.InterpolationMode(geometry.interpolation)
        steps = [
            transforms.Resize(
                sides if geometry.resize == "stretch" else geometry.resize_size,
                filtered,
            ),
            transforms.CenterCrop(geometry.size),
            *([transforms.Grayscale()] if geometry.channels == 1 else []),
            transforms.ToTensor(),
            transforms.Normalize(self.config.mean, self.config.std),
        ]
        return transforms.Compose(steps)

    def save_weights(self, path: Path) -> None:
        """Writes the state dict as the stock handler reads it."""
        torch.save(dict(self.source.weights or {}), path)


def read_picture(photograph: bytes) -> Image.Image:
    """Decoded by Pillow."""
    return Image.open(io.BytesIO(photograph)).convert("RGB")


def load_model(reference: str) -> ModelUnderTest:
    """Loads a model for a benchmark; ResNet-50 gets seeded weights, so that nothing downloads.

    Args:
        reference: an embedded model's name, or the path of a .mar.
    """
    if is_archive(reference):
        source = load_archived_model(Path(reference))
    else:
        weights = "random" if reference == "resnet50" else None
        source = load_model_source(reference, weights)
    return ModelUnderTest(reference, name_model(reference), source)


def name_model(reference: str) -> str:
    """What a result calls it."""
    return identify_archive(Path(reference)) if is_archive(reference) else reference


def is_archive(reference: str) -> bool:
    """Whether it is a .mar's path and not an embedded model's name."""
    return reference.endswith(".mar")


@dataclass(frozen=True)
class Answer:
    """A reference answer: the best label, its probability and its lead over the second."""

    label: str
    probability: float
    lead: float


def classify_reference(model: ModelUnderTest, photograph: bytes) -> Answer:
    """Classifies with Pillow, torchvision's transforms and fp32: the stock handler's semantics."""
    picture = model.make_transforms()(read_picture(photograph))
    with torch.inference_mode():
        outputs = model.source.module.eval()(picture[None])
    probabilities = activate(outputs, model.config.activation)[0]
    best, classes = torch.topk(probabilities, 2)
    return Answer(
        model.labels[int(classes[0])], float(best[0]), float(best[0] / best[1])
    )
