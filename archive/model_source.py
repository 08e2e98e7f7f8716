"""`--model` and `--weights` -> a checked model with its files; nothing unpickled that could run."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from offpath.archive.catalog import MODELS, RANDOM_SEED, StateDict, imagenet_labels
from offpath.archive.checkpoint import Say, is_torchscript, read_state_dict
from offpath.handler.errors import ExpectedError

# Modules of the worker itself; an archive's folder comes first on its path.
RESERVED_MODULES = frozenset(
    """ts torch torchvision captum offpath classifier_entry numpy PIL simplejpeg yaml psutil
    packaging aiobotocore aiohttp botocore zstandard""".split()
)
# What Python imports as a module (importlib.machinery.all_suffixes() of any platform).
MODULE_SUFFIXES = (".py", ".pyc", ".so")
KEYS_SHOWN = 5


@dataclass(frozen=True)
class ModelSource:
    """A model that loads, with what the archive needs of it.

    Attributes:
        module: the model; evaluated once to count its classes.
        model_file: its definition, None for TorchScript.
        weights: state dict, None for TorchScript.
        script_file: the TorchScript file, None otherwise.
        labels: names by class index where the model brings its own.
        handler: its preprocessing as `handler:` settings.
    """

    module: torch.nn.Module
    model_file: Path | None
    weights: StateDict | None
    script_file: Path | None = None
    labels: list[str] | None = None
    handler: dict[str, Any] = field(default_factory=dict)


def load_model_source(
    model: str, weights: str | None, say: Say = lambda line: None
) -> ModelSource:
    """Resolves and loads what the user named.

    Args:
        model: an embedded model's name, a Python file with one torch.nn.Module class, or a
            TorchScript file.
        weights: a state dict or a checkpoint around one (see `archive.checkpoint`), `pretrained`,
            `random`, or None for the model's default.
        say: told what was taken off around the weights.

    Raises:
        ExpectedError: a missing file, a file of another kind, weights that do not fit.
    """
    if model in MODELS:
        return _load_embedded(model, weights, say)
    path = Path(model)
    if not path.is_file():
        known = ", ".join(MODELS)
        raise ExpectedError(f"--model {model!r} is neither a file nor one of {known}")
    if path.suffix == ".py":
        return _load_python(path, weights, say)
    if is_torchscript(path):
        if weights is not None:
            raise ExpectedError(
                "a TorchScript file holds its weights; leave --weights out"
            )
        return ModelSource(_load_script(path), None, None, script_file=path)
    raise ExpectedError(
        f"--model {model!r} is neither Python nor TorchScript; a state dict goes to --weights, "
        "beside --model with its class"
    )


def count_classes(module: torch.nn.Module, image_size: int) -> int:
    """Runs one black picture through the model and returns the width of its output."""
    module.eval()
    try:
        with torch.inference_mode():
            output = module(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:
        raise ExpectedError(
            f"the model does not take a float32 [1, 3, {image_size}, {image_size}]: {error}"
        ) from error
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        shape = (
            list(output.shape)
            if isinstance(output, torch.Tensor)
            else type(output).__name__
        )
        raise ExpectedError(
            f"a classifier returns logits [batch, classes]; this returned {shape}"
        )
    return int(output.shape[1])


def check_shadowing(path: Path) -> None:
    """Refuses a file whose module name would hide one that the worker imports."""
    if path.suffix not in MODULE_SUFFIXES:
        return
    name = path.name.partition(".")[0]
    if name in RESERVED_MODULES or name in sys.stdlib_module_names:
        raise ExpectedError(
            f"{path.name} would shadow the module {name!r} in the worker (the archive's folder "
            "comes first on its path); rename the file"
        )


def _load_embedded(name: str, weights: str | None, say: Say) -> ModelSource:
    embedded = MODELS[name]
    module = _instantiate(embedded.file)
    chosen = weights or embedded.default_weights
    if chosen == "pretrained":
        state_dict = embedded.load_pretrained()
    else:
        state_dict = _resolve_weights(embedded.file, module, chosen, say)
    _fit(module, state_dict, chosen)
    labels = imagenet_labels()
    return ModelSource(
        module, embedded.file, state_dict, None, labels, dict(embedded.handler)
    )


def _load_python(path: Path, weights: str | None, say: Say) -> ModelSource:
    check_shadowing(path)
    if "." in path.stem:
        # ts/torch_handler/base_handler.py imports what comes before the first dot.
        raise ExpectedError(
            f"--model {path.name}: TorchServe cannot import a name with dots; rename the file"
        )
    if weights is None or weights == "pretrained":
        raise ExpectedError(
            f"--model {path.name} needs --weights FILE (or `random` for a trial)"
        )
    module = _instantiate(path)
    state_dict = _resolve_weights(path, module, weights, say)
    _fit(module, state_dict, weights)
    return ModelSource(module, path, state_dict)


def _resolve_weights(
    file: Path, module: torch.nn.Module, weights: str, say: Say
) -> StateDict:
    if weights == "random":
        # Seeded again: the instance at hand drew from whatever state the generator was in.
        torch.manual_seed(RANDOM_SEED)
        return _instantiate(file).state_dict()
    return read_state_dict(Path(weights), frozenset(module.state_dict()), say)


def _instantiate(path: Path) -> torch.nn.Module:
    """Imports the definition and builds its one class, as ts/torch_handler/base_handler.py does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ExpectedError(f"{path} cannot be imported as Python")
    definition = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(definition)
    except (Exception, SystemExit) as error:
        raise ExpectedError(
            f"{path} fails on import: {type(error).__name__}: {error}"
        ) from error
    classes = [
        member
        for _, member in inspect.getmembers(definition, inspect.isclass)
        if member.__module__ == definition.__name__
    ]
    if len(classes) != 1 or not issubclass(classes[0], torch.nn.Module):
        found = ", ".join(c.__name__ for c in classes) or "none"
        raise ExpectedError(
            f"{path.name} must define exactly one class, a torch.nn.Module (TorchServe's rule); "
            f"found: {found}"
        )
    try:
        module: torch.nn.Module = classes[0]()
    except Exception as error:
        raise ExpectedError(
            f"{classes[0].__name__}() in {path.name} fails without arguments: {error}"
        ) from error
    return module


def _fit(module: torch.nn.Module, state_dict: StateDict, source: str) -> None:
    """Loads the weights; says which keys do not fit."""
    own = module.state_dict()
    missing = [key for key in own if key not in state_dict]
    unexpected = [key for key in state_dict if key not in own]
    shapes = [
        f"{key} is {list(state_dict[key].shape)}, the model's is {list(own[key].shape)}"
        for key in own
        if key in state_dict and state_dict[key].shape != own[key].shape
    ]
    problems = [
        f"{title}: {', '.join(keys[:KEYS_SHOWN])}"
        + (", ..." if len(keys) > KEYS_SHOWN else "")
        for title, keys in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("shape", shapes),
        )
        if keys
    ]
    if problems:
        raise ExpectedError(
            f"the weights {source} do not fit the model; " + "; ".join(problems)
        )
    module.load_state_dict(dict(state_dict))


def _load_script(path: Path) -> torch.nn.Module:
    try:
        module: torch.nn.Module = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise ExpectedError(
            f"{path.name} cannot be loaded as TorchScript: {error}"
        ) from error
    return module
