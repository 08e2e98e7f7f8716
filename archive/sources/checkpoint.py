"""Finds the state dict in a checkpoint; never unpickles anything that could run.

Trainers put a dict around the weights (`state_dict`, `model`, beside an optimizer), a prefix before
every name (`module.` of DDP, `_orig_mod.` of torch.compile, `model.` of Lightning), and the states
of losses and metrics beside the model's. The user is told what was removed.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from offpath.archive import Say, say_nothing
from offpath.archive.mar_file import check_unpacked_size
from offpath.errors import WrongOption

# Keys under which checkpoints hold weights, in order of preference: the trained weights, then their
# moving averages.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "module")
AVERAGES = ("ema_state_dict", "state_dict_ema", "model_ema", "ema")
# Classes that were not imported, or names that were left out, in a message.
NAMES_SHOWN = 3


def load_checkpoint(path: Path, say: Say = say_nothing) -> object:
    """Loads a file of torch.save, or .safetensors; runs no code of the file.

    Args:
        say: told which objects of the file were left out.

    Raises:
        WrongOption: there is no such file, or it is of another kind.
    """
    if not path.is_file():
        raise WrongOption(
            f"--weights {str(path)!r}: no such file; accepted: a file, pretrained or random"
        )
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    return _load_torch(path, say)


def find_state_dict(
    loaded: object,
    path: Path,
    names: frozenset[str],
    say: Say = say_nothing,
) -> Mapping[str, torch.Tensor]:
    """Finds the weights for a model in a checkpoint.

    Args:
        loaded: the content, from `load_checkpoint`.
        path: the file, for messages.
        names: the model's own parameters and buffers.
        say: told where the weights were found, and which prefix was removed.

    Raises:
        WrongOption: it holds no weights.
    """
    return _strip_prefixes(_unwrap(loaded, path, say), names, path, say)


def is_torchscript(path: Path) -> bool:
    return has_member(path, "/constants.pkl")


def has_member(path: Path, ending: str) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith(ending) for name in file.namelist())
    except zipfile.BadZipFile:
        return False


def _load_torch(path: Path, say: Say) -> object:
    if is_torchscript(path):
        raise WrongOption(f"{path.name} is TorchScript: pass it as --model, without --weights")
    try:
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:
            check_unpacked_size(file, path.stat().st_size)
    except ValueError as error:
        raise WrongOption(f"{path.name} is refused: {error}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        refusal = error
    with contextlib.suppress(Exception):
        loaded, names = load_with_stand_ins(path)
        # A pickled model has no state dict for us to find.
        if isinstance(loaded, Mapping):
            say(f"{path.name}: left out its objects of {names}; no code of them ran")
            return loaded
    if not isinstance(refusal, pickle.UnpicklingError) or "truncated" in str(refusal):
        raise WrongOption(
            f"{path.name} is damaged, incomplete or no checkpoint "
            f"({type(refusal).__name__}); copy or download it again"
        ) from refusal
    raise WrongOption(
        f"{path.name} cannot be loaded with weights_only=True ({type(refusal).__name__}); save "
        "only the state dict: torch.save(model.state_dict(), FILE)"
    ) from refusal


def _load_safetensors(path: Path) -> Mapping[str, torch.Tensor]:
    from safetensors.torch import load_file

    try:
        weights: Mapping[str, torch.Tensor] = load_file(path)
    except Exception as error:
        raise WrongOption(f"{path.name} is not a safetensors file: {error}") from error
    return weights


def _unwrap(loaded: object, path: Path, say: Say) -> Mapping[str, torch.Tensor]:
    """Finds the dict of tensors in a checkpoint."""
    if _is_state_dict(loaded):
        return loaded  # type: ignore[return-value]
    if not isinstance(loaded, Mapping):
        raise WrongOption(
            f"{path.name} is not a state dict (names to tensors) but a {type(loaded).__name__}"
        )
    found = [key for key in (*WRAPPERS, *AVERAGES) if _is_state_dict(loaded.get(key))]
    if not found:
        raise WrongOption(
            f"{path.name} is not a state dict (names to tensors), and has none under "
            f"{', '.join((*WRAPPERS, *AVERAGES))}; its keys: "
            f"{', '.join(map(str, list(loaded)[:8]))}"
        )
    others = (
        f" (it also has {', '.join(found[1:])}; for these save them alone)" if found[1:] else ""
    )
    say(f"{path.name}: using the weights under {found[0]!r}{others}")
    return loaded[found[0]]  # type: ignore[no-any-return]


def _is_state_dict(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and torch.is_tensor(v) for k, v in value.items())
    )


def _strip_prefixes(
    weights: Mapping[str, torch.Tensor], names: frozenset[str], path: Path, say: Say
) -> Mapping[str, torch.Tensor]:
    """Removes the prefix under which most of the model's names are, and leaves out other names."""
    found = Counter({"": 0})
    for key in weights:
        starts = [0, *(match.end() for match in re.finditer(r"\.", key))]
        found.update(key[:start] for start in starts if key[start:] in names)
    prefix = max(found, key=lambda one: (found[one], one == ""))
    others = [key for key in weights if not key.startswith(prefix)]
    # A layer beside the model is a part of what was trained. A copy of the model, weights of a
    # loss's classes and the state of a metric are not.
    copies = tuple(one for one in found if one and found[one] == found[prefix])
    layers = [
        key
        for key in others
        if key.endswith(".weight") and not key.startswith(copies)
        if weights[key].dim() > 1 or f"{key[:-7]}.bias" in weights
    ]
    if layers:
        raise WrongOption(
            f"{path.name}: the model's names begin with {prefix!r}, and there are layers beside: "
            f"{_format_names(layers)}; write a net.py whose model has these too, or save the state "
            "dict without them"
        )
    if prefix:
        say(f"{path.name}: removed {prefix!r} from the start of every name")
    if others:
        say(f"{path.name}: left out what is not the model's: {_format_names(others)}")
    return take_names(weights, [key for key in weights if key.startswith(prefix)], prefix)


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def take_names(
    weights: Mapping[str, torch.Tensor], names: Iterable[str], prefix: str = ""
) -> OrderedDict[str, torch.Tensor]:
    """Takes these names out of a state dict, without a prefix that they share.

    Keeps the versions of the modules (`_metadata`), by which some classes convert old weights.
    """
    taken = OrderedDict((name[len(prefix) :], weights[name]) for name in names)
    versions = getattr(weights, "_metadata", None)
    if versions is not None:
        taken._metadata = {  # type: ignore[attr-defined]
            f"{name}."[len(prefix) : -1]: version
            for name, version in versions.items()
            if f"{name}.".startswith(prefix)
        }
    return taken


class UnimportedObject(list[Any]):
    """An object of a class that was not imported. A list, because the reader appends to lists."""

    # Objects of most classes can be keys of a dict; lists cannot.
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any) -> UnimportedObject:
        return super().__new__(cls)

    def __init__(self, *args: Any) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Ignores the state, which the reader would otherwise turn into attributes."""


class DictStandIn:
    """Makes a plain dict, because the reader sets items of nothing else."""

    def __new__(cls, *args: Any) -> Any:
        return OrderedDict()


def load_with_stand_ins(path: Path) -> tuple[object, str]:
    """Loads a zip file of torch.save that also holds objects; imports and runs nothing of these.

    Lightning saves the arguments of a model with its weights: Namespaces, OmegaConf nodes, enums.
    The reader is torch's own for `weights_only`. It knows only opcodes and functions that rebuild
    tensors, and here every other name in the file stands for an inert class of ours.

    Returns:
        the content, and the names that were not imported, for a message.

    Raises:
        Exception: torch's reader or its zip reader refuses the file; of many kinds.
    """
    names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    try:
        loaded = _load(path, names, UnimportedObject)
    except Exception:
        # Which classes are dicts shows only in what the file does with their objects.
        loaded = _load(path, names, DictStandIn)
    return loaded, _format_names(names)


def _load(path: Path, names: list[str], stand_in: type) -> object:
    known: dict[str, Any] = {
        "collections.defaultdict": DictStandIn,
        # In this way pickle names a class inside another.
        "builtins.getattr": lambda *_: stand_in,
    }
    with safe_globals([(known.get(name, stand_in), name) for name in names]):
        return torch.load(path, map_location="cpu", weights_only=True)
