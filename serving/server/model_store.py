"""Turns the arguments of `offpath serve` into a model store and its entries.

TorchServe loads from one folder. Archives from several folders are linked into one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offpath.archive.mar_file import MANIFEST, is_model_folder
from offpath.errors import WrongOption
from offpath.serving.server.server_settings import ServerSettings


def find_models(
    model_store: Path, wanted: Sequence[str], links: Path
) -> tuple[Path, tuple[str, ...]]:
    """Returns the folder to load from, and its entries as TorchServe's load_models takes them.

    Args:
        model_store: folder in which names are looked up; all of it is served if nothing is wanted.
        wanted: `path/to/x.mar`, or `x.mar` or `x` of the store, each also as `NAME=...`; or one
            folder of archives. An archive may also be a folder with a manifest.
        links: folder for links to archives from several folders; empty or filled by this function.

    Raises:
        WrongOption: an archive is missing, or there is none.
    """
    paths = [Path(entry) for entry in wanted]
    folders = [path for path in paths if path.is_dir() and not is_model_folder(path)]
    if folders and len(wanted) > 1:
        raise WrongOption(
            f"{folders[0]} is a folder; name one folder alone, or archives: {folders[0]}/*.mar"
        )
    if folders or not wanted:
        folder = folders[0] if folders else model_store
        found = _list_archives(folder)
        if not found:
            raise WrongOption(f"there is no .mar file in {folder}; `offpath archive` makes one")
        return folder, tuple(found)
    named = []
    for entry in wanted:
        name, separator, target = entry.rpartition("=")
        named.append((name + separator, find_archive(model_store, target)))
    parents = {path.resolve().parent for _, path in named}
    if len(parents) == 1:
        return parents.pop(), tuple(f"{name}{path.name}" for name, path in named)
    files = _link([path for _, path in named], links)
    return links, tuple(f"{name}{files[path.resolve()]}" for name, path in named)


def copy_archives(settings: ServerSettings, folder: Path) -> ServerSettings:
    """Copies the archives, so that a server can start again whatever the store has by then."""
    folder.mkdir()
    for entry in settings.models:
        name = entry.rpartition("=")[2]
        source, copy = settings.model_store / name, folder / name
        if not copy.exists():
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy)
    return replace(settings, model_store=folder)


def _list_archives(folder: Path) -> list[str]:
    unpacked = {path.parents[1].name for path in folder.glob(f"*/{MANIFEST}")}
    return sorted({path.name for path in folder.glob("*.mar")} | unpacked)


def find_archive(model_store: Path, target: str) -> Path:
    """Finds an archive by its path, or by its name in the store with or without `.mar`.

    Raises:
        WrongOption: there is none.
    """
    path = Path(target)
    if (path.suffix == ".mar" and path.is_file()) or is_model_folder(path):
        return path
    if path.suffix == ".war":
        raise WrongOption(
            f"{target} is a workflow, which only TorchServe runs; serve the .mar files of its "
            "models, and call them one after the other"
        )
    in_store = _list_archives(model_store)
    file = target if target.endswith(".mar") or target in in_store else f"{target}.mar"
    if file in in_store:
        return model_store / file
    content = f"it has {', '.join(in_store)}" if in_store else "it has no archives"
    also = "" if "/" in target else f", and no {file!r} in {model_store} ({content})"
    raise WrongOption(f"there is no archive at {target}{also}; `offpath archive` makes one")


def _link(paths: Sequence[Path], links: Path) -> dict[Path, str]:
    """Returns the name of each archive's link; of equal file names, later ones get a number."""
    files: dict[Path, str] = {}
    for path in paths:
        file, number = path.name, 1
        while file in files.values():
            number += 1
            file = f"{path.stem}-{number}{path.suffix}"
        files.setdefault(path.resolve(), file)
    for target, file in files.items():
        link = links / file
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return files
