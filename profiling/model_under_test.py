"""The model that all servers of a run share: same weights, same labels, same preprocessing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

from archive.model_source import ModelSource, load_model_source
from handler.config import HandlerConfig
from offpath.errors import ExpectedError


@dataclass(frozen=True)
class ModelUnderTest:
    """An embedded model with seeded weights and ImageNet's labels."""

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
            raise ExpectedError(
                f"model {self.name!r} has no labels: answers cannot be compared"
            )
        return self.source.labels

    @property
    def model_file(self) -> Path:
        """Its definition."""
        if self.source.model_file is None:
            raise ExpectedError(
                f"model {self.name!r} is TorchScript: the benchmark needs a class"
            )
        return self.source.model_file

    def save_weights(self, path: Path) -> None:
        """Writes the state dict as the stock handler reads it."""
        torch.save(dict(self.source.weights or {}), path)


def load_model(name: str) -> ModelUnderTest:
    """Loads a model for a benchmark; ResNet-50 gets seeded weights, so that nothing downloads."""
    weights = "random" if name == "resnet50" else None
    return ModelUnderTest(name, load_model_source(name, weights))


@dataclass(frozen=True)
class Answer:
    """A reference answer: the best label, its probability and its lead over the second."""

    label: str
    probability: float
    lead: float


def classify_reference(model: ModelUnderTest, photograph: bytes) -> Answer:
    """Classifies with Pillow, torchvision's transforms and fp32: the stock handler's semantics."""
    config = model.config
    prepare = transforms.Compose(
        [
            transforms.Resize(config.resize_size),
            transforms.CenterCrop(config.image_size),
            transforms.ToTensor(),
            transforms.Normalize(config.mean, config.std),
        ]
    )
    picture = Image.open(io.BytesIO(photograph)).convert("RGB")
    with torch.inference_mode():
        probabilities = torch.softmax(
            model.source.module.eval()(prepare(picture)[None]), 1
        )[0]
    best, classes = torch.topk(probabilities, 2)
    return Answer(
        model.labels[int(classes[0])], float(best[0]), float(best[0] / best[1])
    )
