"""What `offpath serve` is asked to serve -> a model store and its entries.

TorchServe loads from one folder. Archives that lie in several are linked into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offpath.handler.errors import WrongOption


def find_models(
    model_store: Path, wanted: Sequence[str], links: Path
) -> tuple[Path, tuple[str, ...]]:
    """The folder to load from, and its entries as TorchServe's load_models takes them.

    Args:
        model_store: where names are looked up, and what is served where nothing is wanted.
        wanted: `path/to/x.mar`, `x.mar` or `x` of the store, each also as `NAME=...`; or a folder.
        links: an empty folder, or one that this function has filled, for archives of several.

    Raises:
        WrongOption: no such archive, no archive at all, or two with the same file name.
    """
    folders = [Path(entry) for entry in wanted if Path(entry).is_dir()]
    if folders and len(wanted) > 1:
        raise WrongOption(
            f"{folders[0]} is a folder; serve one folder, or name archives: {folders[0]}/*.mar"
        )
    if folders or not wanted:
        folder = folders[0] if folders else model_store
        found = _list_archives(folder)
        if not found:
            raise WrongOption(f"no .mar file in {folder}; `offpath archive` makes one")
        return folder, tuple(found)
    named = []
    for entry in wanted:
        name, separator, target = entry.rpartition("=")
        named.append((name + separator, _find_archive(model_store, target)))
    parents = {path.resolve().parent for _, path in named}
    store = parents.pop() if len(parents) == 1 else _link(named, links)
    return store, tuple(f"{name}{path.name}" for name, path in named)


def _list_archives(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.mar"))


def _find_archive(model_store: Path, target: str) -> Path:
    """A path that exists, or a name of the store with or without its ending."""
    if target.endswith(".mar") and Path(target).is_file():
        return Path(target)
    file = target if target.endswith(".mar") else f"{target}.mar"
    if "/" in target:
        raise WrongOption(f"no archive at {target}; `offpath archive` makes one")
    in_store = _list_archives(model_store)
    if file not in in_store:
        has = f"it has {', '.join(in_store)}" if in_store else "it has none"
        raise WrongOption(
            f"no {file!r} in {model_store}; {has}; or give a path: PATH/{file}"
        )
    return model_store / file


def _link(named: Sequence[tuple[str, Path]], links: Path) -> Path:
    by_file: dict[str, Path] = {}
    for _, path in named:
        own = path.resolve()
        if by_file.setdefault(path.name, own) != own:
            raise WrongOption(
                f"two archives are called {path.name}; rename one of them"
            )
    for file, target in by_file.items():
        link = links / file
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return links
