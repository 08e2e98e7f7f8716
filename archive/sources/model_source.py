"""`--model` and `--weights` -> a checked model with its files; nothing unpickled that could run."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from offpath.archive.model_input import format_error
from offpath.archive.models.exported import PROGRAM, Exported
from offpath.archive.sources.checkpoint import Say, is_torchscript, read_state_dict
from offpath.archive.sources.definition import Definition, read_definition
from offpath.archive.sources.embedded import (
    MODELS,
    MODELS_DIR,
    RANDOM_SEED,
    StateDict,
    imagenet_labels,
)
from offpath.archive.sources.packages import PACKAGES, define_model, describe_model
from offpath.handler.errors import WrongOption

KEYS_SHOWN = 5
EXPORTED_FILE = MODELS_DIR / "exported.py"
# What a torch.export program keeps pickled beside its weights: objects of classes of one's own.
PICKLED = ("custom_obj_", "opaque_obj_")


@dataclass(frozen=True)
class ModelSource:
    """A model that loads, with what the archive needs of it.

    Attributes:
        module: the model.
        model_file: its definition, None for TorchScript; the user's file, or one that is written
            (`definition`), and then a name alone.
        weights: state dict, None for TorchScript and torch.export.
        script_file: the TorchScript file, None otherwise.
        labels: names by class index where the model brings its own.
        handler: its preprocessing as `handler:` settings.
        definition: content of `model_file` where it is not the user's.
        files: name in the archive -> further file: what the definition imports, a program.
    """

    module: torch.nn.Module
    model_file: Path | None
    weights: StateDict | None
    script_file: Path | None = None
    labels: list[str] | None = None
    handler: dict[str, Any] = field(default_factory=dict)
    definition: str | None = None
    files: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class _Wanted:
    """The weights that the user named, and where in their file; who is told what was found."""

    weights: str | None
    key: str | None
    say: Say

    def read(self, names: frozenset[str]) -> StateDict:
        """From the file, for a model with these parameters and buffers."""
        return read_state_dict(Path(self.weights or ""), names, self.say, self.key)

    def refuse(self, what: str) -> None:
        """Raises WrongOption where weights are given to what holds its own."""
        if self.weights is not None:
            raise WrongOption(f"{what} holds its weights; leave --weights out")


def load_model_source(
    model: str,
    weights: str | None,
    say: Say = lambda line: None,
    weights_key: str | None = None,
) -> ModelSource:
    """Resolves and loads what the user named.

    Args:
        model: an embedded model's name; `torchvision:NAME` or `timm:NAME`; a Python file, alone or
            with `:NAME` (see `archive.definition`); a torch.export program; a TorchScript file.
        weights: a state dict or a checkpoint around one (see `archive.checkpoint`), `pretrained`,
            `random`, or None for the model's default.
        say: told what was taken off around the weights, and which files go along.
        weights_key: which part of a checkpoint; None: found out.

    Raises:
        WrongOption: a missing file, a file of another kind, weights that do not fit.
    """
    wanted = _Wanted(weights, weights_key, say)
    if weights_key is not None and weights in (None, "pretrained", "random"):
        raise WrongOption(
            "--weights-key names a part of a --weights FILE: name that too"
        )
    if model in MODELS:
        return _load_embedded(model, wanted)
    if model.partition(":")[0] in PACKAGES and ":" in model:
        return _load_packaged(model, wanted)
    path, attribute = _split_name(model)
    if not path.is_file():
        raise WrongOption(
            f"--model {model!r} is neither a file nor one of {', '.join(MODELS)}, torchvision:NAME,"
            " timm:NAME"
        )
    if path.suffix == ".py":
        return _load_python(path, attribute, wanted)
    if is_torchscript(path):
        wanted.refuse("a TorchScript file")
        return ModelSource(_load_script(path), None, None, script_file=path)
    if is_exported_program(path):
        wanted.refuse("a torch.export program")
        program = {PROGRAM.name: path}
        return ModelSource(_load_program(path), EXPORTED_FILE, None, files=program)
    raise WrongOption(
        f"--model {model!r} is neither Python nor TorchScript nor a torch.export program; a state "
        "dict goes to --weights, beside --model with its class"
    )


def _split_name(model: str) -> tuple[Path, str | None]:
    """`net.py:Net` -> the file and the name in it."""
    file, colon, attribute = model.rpartition(":")
    if not colon or not file.endswith(".py"):
        return Path(model), None
    if not attribute.isidentifier():
        raise WrongOption(
            f"--model {model!r}: {attribute!r} is no name; expected {file}:NAME, a class or a "
            "function in the file"
        )
    return Path(file), attribute


def is_exported_program(path: Path) -> bool:
    """Whether torch.export.save wrote it."""
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/models/model.json") for name in file.namelist())
    except zipfile.BadZipFile:
        return False


def _load_embedded(name: str, wanted: _Wanted) -> ModelSource:
    embedded = MODELS[name]
    definition = read_definition(embedded.file, None)
    module = definition.make()
    chosen = wanted.weights or embedded.default_weights
    if chosen == "pretrained":
        state_dict = embedded.load_pretrained()
    else:
        wanted = replace(wanted, weights=chosen)
        state_dict = _resolve_weights(definition.make, module, wanted)
    _fit(module, state_dict, chosen)
    labels = imagenet_labels()
    return ModelSource(
        module, embedded.file, state_dict, None, labels, dict(embedded.handler)
    )


def _load_python(path: Path, attribute: str | None, wanted: _Wanted) -> ModelSource:
    if wanted.weights is None or wanted.weights == "pretrained":
        raise WrongOption(
            f"--model {path.name} needs --weights FILE (or `random` for a trial)"
        )
    definition = read_definition(path, attribute)
    module = definition.make()
    state_dict = _resolve_weights(definition.make, module, wanted)
    _fit(module, state_dict, wanted.weights)
    along = [name for name in definition.files if name != path.name]
    if along:
        wanted.say(f"{path.name} brings along: {', '.join(along)}")
    return _from_definition(definition, module, state_dict, path)


def _load_packaged(named: str, wanted: _Wanted) -> ModelSource:
    """A model of torchvision or timm, with its own weights or the user's."""
    weights = wanted.weights
    if weights is None:
        raise WrongOption(f"--model {named} needs --weights FILE, pretrained or random")
    published = describe_model(named)
    if weights in ("pretrained", "random"):
        definition = define_model(named, None)
        load = published.load_weights
        state_dict = load() if weights == "pretrained" else _seed(definition.make)
    else:
        names = frozenset(define_model(named, None).make().state_dict())
        state_dict = wanted.read(names)
        definition = define_model(named, state_dict)
    module = definition.make()
    _fit(module, state_dict, weights)
    said = ", ".join(f"{key} {value}" for key, value in published.handler.items())
    wanted.say(
        f"{named}: input as its published weights have it ({said}); --set changes it"
    )
    is_published = weights == "pretrained"
    return ModelSource(
        module,
        Path(definition.name),
        state_dict,
        labels=published.labels if is_published else None,
        handler=published.handler,
        definition=definition.text,
    )


def _from_definition(
    definition: Definition, module: torch.nn.Module, weights: StateDict, path: Path
) -> ModelSource:
    files = dict(definition.files)
    if definition.text is None:
        del files[definition.name]
        return ModelSource(module, path, weights, files=files)
    name = Path(definition.name)
    return ModelSource(module, name, weights, definition=definition.text, files=files)


def _resolve_weights(
    make: Callable[[], torch.nn.Module], module: torch.nn.Module, wanted: _Wanted
) -> StateDict:
    if wanted.weights == "random":
        return _seed(make)
    return wanted.read(frozenset(module.state_dict()))


def _seed(make: Callable[[], torch.nn.Module]) -> StateDict:
    """The same random weights each time, whatever was drawn before."""
    torch.manual_seed(RANDOM_SEED)
    return make().state_dict()


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
        raise WrongOption(
            f"the weights {source} do not fit the model; " + "; ".join(problems)
        )
    module.load_state_dict(dict(state_dict))


def _load_script(path: Path) -> torch.nn.Module:
    try:
        module: torch.nn.Module = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise WrongOption(
            f"{path.name} cannot be loaded as TorchScript: {format_error(error)}"
        ) from error
    return module


def _load_program(path: Path) -> torch.nn.Module:
    with zipfile.ZipFile(path) as file:
        names = [Path(name).name for name in file.namelist()]
    if any(name.startswith(PICKLED) for name in names):
        raise WrongOption(
            f"{path.name} holds pickled objects, which could run code; export the model without "
            "classes of its own"
        )
    try:
        return Exported(path)
    except Exception as error:  # torch.export.load raises what it meets
        raise WrongOption(
            f"{path.name} cannot be loaded as a torch.export program without unpickling code: "
            f"{format_error(error)}"
        ) from error
