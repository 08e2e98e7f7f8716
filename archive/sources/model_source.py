"""Loads the model that --model and --weights name; never unpickles anything that could run."""

from __future__ import annotations

import contextlib
import copy
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from offpath.archive import Say, say_nothing
from offpath.archive.model_probe import format_error
from offpath.archive.models.exported import PROGRAM, Exported
from offpath.archive.models.onnx_model import MODEL, OnnxModel
from offpath.archive.sources.checkpoint import (
    find_state_dict,
    has_member,
    is_torchscript,
    load_checkpoint,
)
from offpath.archive.sources.definition import Definition, read_definition
from offpath.archive.sources.hugging_face import load_pretrained
from offpath.archive.sources.named_models import (
    EMBEDDED,
    MODELS_DIR,
    StateDict,
    describe_model,
)
from offpath.archive.sources.onnx_file import read_onnx_input
from offpath.errors import WrongOption

ERROR_SHOWN = 500
# Of torch's list of what does not fit: missing names, unexpected ones, then shapes.
LINES_SHOWN, CHARACTERS_SHOWN = 5, 200
RANDOM_SEED = 0
EXPORTED_FILE = MODELS_DIR / "exported.py"
ONNX_FILE = MODELS_DIR / "onnx_model.py"
# Prefixes of a torch.export program's pickled files: objects of the user's own classes.
PICKLED = ("custom_obj_", "opaque_obj_")


@dataclass(frozen=True)
class ModelSource:
    """A loaded model and its files.

    Attributes:
        model_file: the definition: the user's file, or the name of a file that the archive builder
            writes from `definition`; None for TorchScript.
        weights: state dict; None for TorchScript, torch.export and ONNX.
        script_file: the TorchScript file; None otherwise.
        labels: names by class index, if the model brings its own.
        handler: the model's preprocessing as `handler:` settings.
        definition: the text of `model_file`, if that is not the user's file.
        files: name in the archive -> further file: modules that the definition imports, a program.
    """

    module: torch.nn.Module
    model_file: Path | None
    weights: StateDict | None
    script_file: Path | None = None
    labels: list[str] | None = None
    handler: dict[str, Any] = field(default_factory=dict)
    definition: str | None = None
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def users_file(self) -> str | None:
        """Name of the definition where code of the user makes the model; None for other sources."""
        if self.model_file is None or self.weights is None:
            return None
        is_ours = self.model_file.parent == MODELS_DIR
        is_written = self.definition is not None and not self.files
        return None if is_ours or is_written else self.model_file.name


@dataclass(frozen=True)
class _Wanted:
    """The user's --weights."""

    weights: str | None
    say: Say

    def load(self) -> Callable[[torch.nn.Module], StateDict]:
        """Loads the file and returns what finds a model's weights in it."""
        path = Path(self.weights or "")
        loaded = load_checkpoint(path, self.say)

        def find(model: torch.nn.Module) -> StateDict:
            converts = type(model).load_state_dict is not torch.nn.Module.load_state_dict
            if converts and isinstance(loaded, Mapping):
                # As TorchServe does: the class may also unwrap its checkpoints.
                with contextlib.suppress(Exception):
                    return _convert(model, loaded)
            names = frozenset(torch.nn.Module.state_dict(model))
            found = find_state_dict(loaded, path, names, self.say)
            if not converts:
                return found
            try:
                return _convert(model, found)
            except Exception as error:
                raise WrongOption(
                    f"the weights {path} do not fit the model; its own load_state_dict fails with "
                    f"{type(error).__name__}: {' '.join(str(error).split())[:ERROR_SHOWN]}"
                ) from error

        return find

    def refuse(self, what: str) -> None:
        """Raises WrongOption if --weights is passed with a file that holds its own weights."""
        if self.weights is not None:
            raise WrongOption(f"{what} holds its own weights; leave --weights out")


def load_model_source(model: str, weights: str | None, say: Say = say_nothing) -> ModelSource:
    """Loads a model.

    Args:
        model: an embedded model's name; `torchvision:NAME` or `timm:NAME`; a Python file, alone or
            with `:NAME` (see `sources.definition`); an ONNX file; a torch.export program; a
            TorchScript file; a folder that `save_pretrained` wrote (see `sources.hugging_face`).
        weights: a state dict or a checkpoint around one (see `sources.checkpoint`), `pretrained`,
            `random`, or None for the model's default.
        say: told where the weights were found and which files the definition imports.

    Raises:
        WrongOption: a file is missing or of another kind, or the weights do not fit.
    """
    wanted = _Wanted(weights, say)
    named = _load_named(model, wanted)
    if named is not None:
        return named
    path, attribute = _split_name(model)
    if model and path.is_dir():
        wanted.refuse(f"the folder {path.name}")
        return _load_folder(path, say)
    if not path.is_file():
        raise WrongOption(
            f"--model {model!r}: no such file or model; accepted: {', '.join(EMBEDDED)}, "
            "torchvision:NAME, timm:NAME, a file, or a folder with a Hugging Face model"
        )
    if path.suffix == ".py":
        return _load_python(path, attribute, wanted)
    if path.suffix == ".onnx":
        wanted.refuse("an ONNX model")
        handler, files = read_onnx_input(path), {MODEL.name: path}
        return ModelSource(OnnxModel(path), ONNX_FILE, None, handler=handler, files=files)
    if is_torchscript(path):
        wanted.refuse("a TorchScript file")
        load = partial(torch.jit.load, map_location="cpu")
        return ModelSource(_load_file(path, "TorchScript", load), None, None, script_file=path)
    if has_member(path, "/models/model.json"):  # torch.export.save wrote it
        wanted.refuse("a torch.export program")
        program = {PROGRAM.name: path}
        return ModelSource(_load_program(path), EXPORTED_FILE, None, files=program)
    raise WrongOption(
        f"--model {model!r} is not Python, ONNX, TorchScript or a torch.export program; pass a "
        "state dict as --weights, and the Python file of its class as --model"
    )


def _split_name(model: str) -> tuple[Path, str | None]:
    file, colon, attribute = model.rpartition(":")
    if not colon or not file.endswith(".py"):
        return Path(model), None
    if not attribute.isidentifier():
        raise WrongOption(
            f"--model {model!r}: {attribute!r} is not a Python name; expected {file}:NAME, a class "
            "or a function in the file"
        )
    return Path(file), attribute


def _load_named(named: str, wanted: _Wanted) -> ModelSource | None:
    """Returns None if `named` is no name of a model, but a path for instance."""
    model = describe_model(named, wanted.weights)
    if model is None:
        return None
    weights = wanted.weights or model.default_weights
    if weights is None:
        raise WrongOption(
            f"--model {named} needs --weights FILE, --weights pretrained or --weights random"
        )
    definition = model.define({})
    module = definition.make()
    if weights == "random":
        state_dict = _seed(definition.make)
    else:
        find = model.load_pretrained if weights == "pretrained" else partial(wanted.load(), module)
        arguments, state_dict = model.fit(module, find())
        if arguments:
            definition = model.define(arguments)
            module = definition.make()
    state_dict = _fit(module, state_dict, weights)
    is_published = weights == "pretrained" or Path(weights).name == model.published_file
    if model.arguments and weights != "random" and not is_published:
        wanted.say(
            f"warning: {named} is made with {model.arguments}, as for its published weights. For "
            "weights that were not fine-tuned from these, write a function in a net.py that makes "
            "it without, and pass --model net.py:FUNCTION"
        )
    if model.file is None:
        settings = ", ".join(f"{key} {value}" for key, value in model.handler.items())
        wanted.say(
            f"{named}: preprocessing of its published weights ({settings}); --set changes it"
        )
    # Other weights may have other classes.
    labels = model.labels if is_published or model.file is not None else None
    return _from_definition(definition, module, state_dict, model.file, labels, model.handler)


def _load_folder(folder: Path, say: Say) -> ModelSource:
    definition, weights, labels, handler = load_pretrained(folder, say)
    module = definition.make()
    _fit(module, weights, folder.name)
    return _from_definition(definition, module, weights, None, labels, handler)


def _load_python(path: Path, attribute: str | None, wanted: _Wanted) -> ModelSource:
    if wanted.weights is None or wanted.weights == "pretrained":
        raise WrongOption(
            f"--model {path.name} needs --weights FILE (or --weights random for a trial)"
        )
    # Before the file's code runs, because weights that are refused are a reason not to run it.
    find_weights = None if wanted.weights == "random" else wanted.load()
    definition = read_definition(path, attribute)
    module = definition.make()
    if find_weights is None:
        state_dict = _seed(definition.make)
    else:
        state_dict = find_weights(module)
    state_dict = _fit(module, state_dict, wanted.weights)
    imported = [name for name in definition.files if name != path.name]
    if imported:
        wanted.say(
            f"{path.name} imports these files, which go into the archive: {', '.join(imported)}"
        )
    return _from_definition(definition, module, state_dict, path)


def _from_definition(
    definition: Definition,
    module: torch.nn.Module,
    weights: StateDict,
    file: Path | None,
    labels: list[str] | None = None,
    handler: dict[str, Any] | None = None,
) -> ModelSource:
    """Makes the source of a Python model; `file` is its definition where nothing is written."""
    files = dict(definition.files)
    if definition.text is None:
        del files[definition.name]
    else:
        file = Path(definition.name)
    text = definition.text
    return ModelSource(module, file, weights, None, labels, handler or {}, text, files)


def _seed(make: Callable[[], torch.nn.Module]) -> StateDict:
    """Makes the same random weights each time, whatever was drawn before."""
    torch.manual_seed(RANDOM_SEED)
    return torch.nn.Module.state_dict(make())


def _convert(module: torch.nn.Module, checkpoint: Mapping[str, Any]) -> StateDict:
    """Loads a checkpoint in the model's own way; returns copies by the names of its modules."""
    module.load_state_dict(copy.copy(checkpoint))  # the method may change it
    # Some classes override state_dict too, and some change weights in their eval.
    weights = torch.nn.Module.state_dict(module)
    for name, value in weights.items():
        weights[name] = value.detach().clone()
    return weights


def _fit(module: torch.nn.Module, state_dict: StateDict, source: str) -> StateDict:
    """Loads the weights into the model and returns them by the names of its modules.

    Raises:
        WrongOption: they do not fit, with torch's reason and what to do.
    """
    own = torch.nn.Module.state_dict(module)
    try:
        torch.nn.Module.load_state_dict(module, state_dict)
    except Exception as error:
        lines = str(error).splitlines()[1 : 1 + LINES_SHOWN] or [format_error(error)]
        reason = "; ".join(line.strip()[:CHARACTERS_SHOWN].rstrip(". ") for line in lines)
        raise WrongOption(
            f"the weights {source} do not fit the model: {reason}; write a function in a net.py "
            "that makes the model as it was trained (head, aux_logits, image size): "
            "--model net.py:FUNCTION"
        ) from error
    # Layers add what checkpoints of an older torch lack, and hooks rename.
    is_same = own.keys() == state_dict.keys()
    return state_dict if is_same else torch.nn.Module.state_dict(module)


def _load_program(path: Path) -> torch.nn.Module:
    with zipfile.ZipFile(path) as file:
        names = [Path(name).name for name in file.namelist()]
    if any(name.startswith(PICKLED) for name in names):
        raise WrongOption(
            f"{path.name} holds pickled objects, which could run code; export the model without "
            "its own classes"
        )
    return _load_file(path, "a torch.export program without unpickling code", Exported)


def _load_file(path: Path, kind: str, load: Callable[[Path], torch.nn.Module]) -> torch.nn.Module:
    try:
        return load(path)
    except Exception as error:  # torch raises errors of many kinds
        raise WrongOption(
            f"{path.name} cannot be loaded as {kind}: {format_error(error)}"
        ) from error
