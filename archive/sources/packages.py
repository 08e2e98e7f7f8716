"""Models by name from packages of models: `torchvision:resnet50`, `timm:vit_tiny_patch16_224`.

The archive gets a definition that asks the package for the model; the worker needs the package.
How many classes it has is read from the weights.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from offpath.archive.model_input import format_error
from offpath.archive.sources.definition import WRAPPER, WRAPPER_FILE, Definition
from offpath.archive.sources.embedded import StateDict
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.image.geometry import INTERPOLATIONS

PACKAGES = ("torchvision", "timm")
# Of ImageNet, which all models of these packages are made for.
CLASSES = 1000


@dataclass(frozen=True)
class Published:
    """What a package says of one of its models.

    Attributes:
        handler: the preprocessing of its published weights, as `handler:` settings.
        labels: of its published weights; None where the package has none.
        load_weights: downloads those.
    """

    handler: dict[str, Any]
    labels: list[str] | None
    load_weights: Callable[[], StateDict]


def describe_model(named: str) -> Published:
    """Looks a model up.

    Args:
        named: `torchvision:NAME` or `timm:NAME`.

    Raises:
        WrongOption: the package is not installed, or has no such model.
    """
    collection, _, name = named.partition(":")
    package = _import(collection, named)
    models = package.models if collection == "torchvision" else package
    # torchvision's models for other tasks lie in folders below.
    only = {"module": models} if collection == "torchvision" else {}
    known = models.list_models(**only)
    if name.partition(".")[0] not in known:
        near = ", ".join(difflib.get_close_matches(name, known, 3)) or known[0]
        raise WrongOption(f"--model {named!r}: no such classifier; near it: {near}")
    if collection == "torchvision":
        return _describe_torchvision(models, name)
    return _describe_timm(package, name)


def define_model(named: str, weights: Mapping[str, torch.Tensor] | None) -> Definition:
    """The definition that fits the weights: as many classes, as many channels.

    Args:
        named: as for `describe_model`, which found it.
        weights: None for the published number of classes.
    """
    collection, _, name = named.partition(":")
    arguments: dict[str, Any] = {}
    if weights is not None:
        arguments = _read_arguments(_make(collection, name, {}), weights, collection)
    extra = "".join(f", {key}={value}" for key, value in arguments.items())
    call = {
        "torchvision": f"torchvision.models.get_model({name!r}, weights=None{extra})",
        "timm": f"timm.create_model({name!r}, pretrained=False{extra})",
    }[collection]
    text = WRAPPER.format(imports=f"import {collection}", call=call)
    return Definition(
        lambda: _make(collection, name, arguments), WRAPPER_FILE, text, {}
    )


def _make(collection: str, name: str, arguments: dict[str, Any]) -> torch.nn.Module:
    package = importlib.import_module(collection)
    model: torch.nn.Module
    if collection == "torchvision":
        model = package.models.get_model(name, weights=None, **arguments)
    else:
        model = package.create_model(name, pretrained=False, **arguments)
    return model


def _import(collection: str, named: str) -> Any:
    try:
        return importlib.import_module(collection)
    except ImportError as error:
        raise WrongOption(
            f"--model {named} needs the package {collection}, here and where the workers run: "
            f"pip install {collection}"
        ) from error


def _read_arguments(
    model: torch.nn.Module, weights: Mapping[str, torch.Tensor], collection: str
) -> dict[str, int]:
    """Where only the number of classes or channels differs from the published model's."""
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


def _describe_torchvision(models: Any, name: str) -> Published:
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

    labels = list(published.meta["categories"])
    return Published(handler, labels, _said(load_weights, f"torchvision:{name}"))


def _describe_timm(timm: Any, name: str) -> Published:
    config = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
    )
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

    return Published(handler, None, _said(load_weights, f"timm:{name}"))


def _said(load: Callable[[], StateDict], named: str) -> Callable[[], StateDict]:
    """Downloads fail in as many ways as there are packages."""

    def load_weights() -> StateDict:
        try:
            return load()
        except Exception as error:
            raise ExpectedError(
                f"the pretrained weights of {named} could not be downloaded "
                f"({format_error(error)}); download them elsewhere and pass --weights FILE, or use "
                "--weights random"
            ) from error

    return load_weights
