"""Finds the state dict in a checkpoint; never unpickles anything that could run.

Trainers put a dict around the weights (`state_dict`, `model`, beside an optimizer), a prefix before
every name (`module.` of DDP, `_orig_mod.` of torch.compile, `model.` of Lightning), or both. The
user is told what was removed.
"""

from __future__ import annotations

import contextlib
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch

from offpath.archive import Say, say_nothing
from offpath.archive.mar_file import check_unpacked_size
from offpath.archive.sources.stand_ins import load_with_stand_ins
from offpath.handler.errors import MissingPackage, WrongOption

# Keys under which checkpoints hold weights, in order of preference: the trained weights, then their
# moving averages.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "module")
AVERAGES = ("ema_state_dict", "state_dict_ema", "model_ema", "ema")
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")
# torch.optim.swa_utils.AveragedModel adds this buffer to the model's.
COUNTERS = frozenset({"n_averaged"})


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
    key: str | None = None,
) -> Mapping[str, torch.Tensor]:
    """Finds the weights for a model in a checkpoint.

    Args:
        loaded: the content, from `load_checkpoint`.
        path: the file, for messages.
        names: the model's own parameters and buffers.
        say: told where the weights were found, and which prefix was removed.
        key: path to the weights in the file, dots between the names of dicts; None to find it.

    Raises:
        WrongOption: it holds no weights (under `key`).
    """
    weights = _unwrap(loaded, path, say) if key is None else _pick(loaded, path, key, say)
    return _strip_prefixes(weights, names, path, say)


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
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingPackage("safetensors", "serve") from error
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
    found = _list_parts(loaded)
    if not found:
        raise WrongOption(
            f"{path.name} is not a state dict (names to tensors), and has none under "
            f"{', '.join((*WRAPPERS, *AVERAGES))}; its keys: "
            f"{', '.join(map(str, list(loaded)[:8]))}"
        )
    others = (
        f" (it also has {', '.join(found[1:])}; choose with --weights-key)" if found[1:] else ""
    )
    say(f"{path.name}: using the weights under {found[0]!r}{others}")
    return loaded[found[0]]  # type: ignore[no-any-return]


def _pick(loaded: object, path: Path, key: str, say: Say) -> Mapping[str, torch.Tensor]:
    """Finds what `key` names: a dict in the file, or the entries of a dict with that prefix."""
    found: object = loaded
    rest = key
    while rest and isinstance(found, Mapping):
        name, _, after = rest.partition(".")
        if name in found:
            found, rest = found[name], after
            continue
        prefix, rest = f"{rest}.", ""
        found = {
            str(name).removeprefix(prefix): value
            for name, value in found.items()
            if str(name).startswith(prefix)
        }
    if not _is_state_dict(found):
        raise WrongOption(
            f"--weights-key {key!r}: {path.name} has no weights there; it has weights under "
            f"{', '.join(_list_parts(loaded)) or 'none of the usual keys'}"
        )
    say(f"{path.name}: using the weights under {key!r} (--weights-key)")
    return found  # type: ignore[return-value]


def _list_parts(loaded: object) -> list[str]:
    if not isinstance(loaded, Mapping):
        return []
    return [key for key in (*WRAPPERS, *AVERAGES) if _is_state_dict(loaded.get(key))]


def _is_state_dict(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and torch.is_tensor(v) for k, v in value.items())
    )


def _strip_prefixes(
    weights: Mapping[str, torch.Tensor], names: frozenset[str], path: Path, say: Say
) -> Mapping[str, torch.Tensor]:
    """Removes prefixes that all names share, until the names are the model's."""
    stripped = ""
    while True:
        own = {k: v for k, v in weights.items() if k in names or k not in COUNTERS}
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in own)), None)
        if prefix is None or own.keys() <= names:
            break
        weights = {name.removeprefix(prefix): value for name, value in own.items()}
        stripped += prefix
    if stripped:
        say(f"{path.name}: removed {stripped!r} from the start of every name")
    return own
