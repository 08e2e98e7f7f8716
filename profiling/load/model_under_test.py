"""The model that all servers of a run share: the same weights, labels and preprocessing.

It is an embedded model, or the user's own out of a .mar. Other servers load the latter from files,
so these lie in a cache folder named by the archive's checksum.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image

from offpath.archive.labels import read_labels
from offpath.archive.mar_file import LABELS, MarFile, read_mar, unpack_mar
from offpath.archive.model_probe import check_label_count, count_classes
from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.errors import WrongOption
from offpath.handler.config import INPUT_SETTINGS, HandlerConfig
from offpath.handler.image.geometry import both_sides
from offpath.handler.model.outputs import activate, keep_one_output
from offpath.profiling.core.workplace import cache_folder

if TYPE_CHECKING:
    from torchvision import transforms

# The settings of `handler:` that belong to the model; the others say how our server runs it.
NOT_COMPARED = {"resize": "letterbox", "channel_order": "bgr", "pixel_scale": 255}
PREPROCESSING = (*INPUT_SETTINGS, "activation", "output")
# Digits of a checksum that tell archives apart.
DIGITS = 12


@dataclass(frozen=True)
class ModelUnderTest:
    """An embedded model with seeded weights and ImageNet's labels, or the user's.

    Attributes:
        reference: argument of `load_model`, in any process.
        name: name in results; an archive's has its checksum and no folder.
    """

    reference: str
    name: str
    source: ModelSource

    @property
    def config(self) -> HandlerConfig:
        return HandlerConfig.from_mapping(self.source.handler, environ={})

    @property
    def labels(self) -> list[str]:
        if self.source.labels is None:
            raise WrongOption(f"model {self.name!r} has no labels: replies cannot be compared")
        return self.source.labels

    @property
    def top_k(self) -> int:
        """The number of classes in a reply: five as in the stock handler, or fewer."""
        return min(self.config.top_k, len(self.labels))

    @property
    def model_file(self) -> Path:
        """The file with the model's class; raises WrongOption for TorchScript."""
        if self.source.model_file is None:
            raise WrongOption(f"model {self.name!r} is TorchScript: the benchmark needs a class")
        return self.source.model_file

    def make_transforms(self) -> transforms.Compose:
        """Returns torchvision's transforms of a Pillow image, as in the stock handler.

        Raises:
            WrongOption: the model needs an input that no other server's example makes.
        """
        # It takes a second, and most processes of a comparison decode with our own code.
        from torchvision import transforms

        geometry = self.config.input_geometry
        for key, value in NOT_COMPARED.items():
            if getattr(self.config, key) == value:
                raise WrongOption(
                    f"model {self.name!r} has {key}: {value}, which no other server's example "
                    "does; it cannot be compared"
                )
        sides = both_sides(geometry.resize_size)
        filtered = transforms.InterpolationMode(geometry.interpolation)
        steps = [
            transforms.Resize(
                sides if geometry.resize == "stretch" else geometry.resize_size,
                filtered,
            ),
            transforms.CenterCrop(geometry.shape[:2]),
            *([transforms.Grayscale()] if geometry.channels == 1 else []),
            transforms.ToTensor(),
            transforms.Normalize(self.config.mean, self.config.std),
        ]
        return transforms.Compose(steps)

    def save_weights(self) -> bytes:
        file = io.BytesIO()
        torch.save(dict(self.source.weights or {}), file)
        return file.getvalue()


def read_image(photograph: bytes) -> Image.Image:
    return Image.open(io.BytesIO(photograph)).convert("RGB")


def load_model(reference: str) -> ModelUnderTest:
    """Loads an embedded model by name, or the model of a .mar by path.

    ResNet-50 gets seeded weights, so that nothing is downloaded.
    """
    if is_archive(reference):
        source = load_archived_model(Path(reference))
    else:
        weights = "random" if reference == "resnet50" else None
        source = load_model_source(reference, weights)
    return ModelUnderTest(reference, name_model(reference), source)


def name_model(reference: str) -> str:
    return identify_archive(Path(reference)) if is_archive(reference) else reference


def is_archive(reference: str) -> bool:
    return reference.endswith(".mar")


@dataclass(frozen=True)
class ExpectedReply:
    """The reference's best label, its probability and its lead over the second."""

    label: str
    probability: float
    lead: float


def classify_reference(model: ModelUnderTest, photograph: bytes) -> ExpectedReply:
    """Classifies with Pillow, torchvision's transforms and fp32, as the stock handler does."""
    image = model.make_transforms()(read_image(photograph))
    with torch.inference_mode():
        outputs = model.source.module.eval()(image[None])
    probabilities = activate(outputs, model.config.activation)[0]
    best, classes = torch.topk(probabilities, 2)
    return ExpectedReply(model.labels[int(classes[0])], float(best[0]), float(best[0] / best[1]))


def identify_archive(path: Path) -> str:
    return f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]}"


def load_archived_model(path: Path) -> ModelSource:
    """Loads a model that `offpath archive` or torch-model-archiver packed, without its handler.

    Raises:
        WrongOption: the file is no archive, has TorchScript or no labels, or its weights are no
            state dict.
    """
    archive = read_mar(path)
    section = (archive.model_config or {}).get("handler") or {}
    model_file, weights, labels_file = extract_model(archive)
    source = load_model_source(str(model_file), str(weights))
    handler = {key: section[key] for key in PREPROCESSING if key in section}
    labels = read_labels(labels_file)
    config = HandlerConfig.from_mapping(handler, environ={})
    module = keep_one_output(source.module, config.output)
    classes = count_classes(module, config.input_geometry)
    check_label_count(labels, classes, f"{path.name}: {LABELS}")
    return replace(source, module=module, labels=labels, handler=handler)


def is_models_own(name: str) -> bool:
    """Returns whether a file of an archive is a module that the model's class may import."""
    is_ours = name.partition("/")[0] in ("offpath", "classifier_entry.py")
    return name.endswith(".py") and not is_ours


def extract_model(archive: MarFile) -> tuple[Path, Path, Path]:
    """Unpacks a model's files and own modules into the cache, once for each archive.

    Returns the files with the model's class, its state dict and its labels.
    """
    path, model = archive.path, archive.manifest["model"]
    files = (model.get("modelFile"), model.get("serializedFile"))
    if not all(files):
        raise WrongOption(
            f"{path.name} has no model file with weights (TorchScript, or a handler that makes its"
            " own model); the other servers need the class: build it with `offpath archive"
            " --model FILE.py --weights FILE`"
        )
    if LABELS not in archive.names:
        raise WrongOption(
            f"{path.name} has no {LABELS}: replies are compared by label; build it with `offpath"
            " archive --labels FILE`"
        )
    folder = cache_folder() / "models" / identify_archive(path)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            whole = Path(scratch) / "whole"
            modules = filter(is_models_own, archive.names)
            unpack_mar(archive, whole, {*files, LABELS, *modules})
            if not folder.is_dir():
                os.replace(whole, folder)
    definition, weights, labels = (folder / name for name in (*files, LABELS))
    return definition, weights, labels
