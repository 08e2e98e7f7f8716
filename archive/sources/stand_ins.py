"""Reads tensors from checkpoints that also hold objects, and imports or runs nothing of these.

Lightning saves the arguments of a model with its weights: Namespaces, OmegaConf nodes, enums. The
reader is torch's own for `weights_only`. It knows only opcodes and functions that rebuild tensors,
and here every other name in the file stands for an inert class of ours.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

NAMES_SHOWN = 3


class StandIn(list[Any]):
    """An object of a class that was not imported. A list, because the reader appends to lists."""

    # Objects of most classes can be keys of a dict; lists cannot.
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any) -> StandIn:
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
    """Loads a zip file of torch.save.

    Returns:
        the content, and the names that were not imported, for a message.

    Raises:
        Exception: torch's reader or its zip reader refuses the file; of many kinds.
    """
    names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
    try:
        loaded = _load(path, names, StandIn)
    except Exception:
        # Which classes are dicts shows only in what the file does with their objects.
        loaded = _load(path, names, DictStandIn)
    more = f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else ""
    return loaded, ", ".join(names[:NAMES_SHOWN]) + more


def _load(path: Path, names: list[str], stand_in: type) -> object:
    known: dict[str, Any] = {
        "collections.defaultdict": DictStandIn,
        # In this way pickle names a class inside another.
        "builtins.getattr": lambda *_: stand_in,
    }
    with safe_globals([(known.get(name, stand_in), name) for name in names]):
        return torch.load(path, map_location="cpu", weights_only=True)
