"""Loads an archive's model: a class in a file with its weights, or a TorchScript program."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from offpath.handler.errors import ConfigError
from offpath.handler.model.outputs import Output, keep_one_output
from offpath.handler.model.weights import make_with_weights


def load_model(
    folder: Path, manifest: Mapping[str, Any], device: torch.device, output: Output | None
) -> torch.nn.Module:
    """Loads the model that the manifest names onto a device, for inference.

    Args:
        folder: the unpacked archive, which is on the import path.
        output: the output to keep; None for a model that has only one.

    Raises:
        ConfigError: the archive has no model, or its file defines several classes.
    """
    names = manifest["model"]
    weights = folder / names["serializedFile"] if "serializedFile" in names else None
    if names.get("modelFile"):
        make = find_class(Path(names["modelFile"]).stem)
        model = make() if weights is None else make_with_weights(make, str(weights))
    elif weights is not None:
        model = torch.jit.load(str(weights), map_location=device)
    else:
        raise ConfigError("the archive's manifest names no model; build it with `offpath archive`")
    return keep_one_output(model, output).to(device).eval()


def find_class(module_name: str) -> Any:
    """Imports a module and returns the only class that it defines."""
    found = vars(importlib.import_module(module_name)).values()
    classes = [one for one in found if inspect.isclass(one) and one.__module__ == module_name]
    if len(classes) != 1:
        names = ", ".join(one.__name__ for one in classes) or "none"
        raise ConfigError(f"{module_name}.py must define one class, the model; it defines {names}")
    return classes[0]


def load_labels(folder: Path) -> dict[int, str]:
    """Returns the archive's labels by class index; empty if it has none."""
    file = folder / "index_to_name.json"
    if not file.is_file():
        return {}
    return {int(index): label for index, label in json.loads(file.read_text("utf-8")).items()}
