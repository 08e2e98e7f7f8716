"""Unpacks an archive, a stock one or one of ours, to build it again: `offpath archive --from`.

The class file and the weights are loaded in the same way as `--model` and `--weights`: nothing is
unpickled that could run. The user is told what will differ from the stock handler.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from offpath.archive.mar_file import (
    FILE_KEYS,
    LABELS,
    MANIFEST,
    OUR_MARK,
    MarFile,
    read_mar,
    unpack_mar,
)
from offpath.archive.model_config import SERVER_SETTINGS, check_server_setting
from offpath.errors import WrongOption
from offpath.handler.config import SECTION, HandlerConfig
from offpath.handler.model.engines.engine import FOLDER
from offpath.handler.serving_settings import ServingSettings, name_keys

STOCK_HANDLER, OURS = "image_classifier", "offpath"
# Our definitions that run a file beside them (archive/models/) -> that file.
RUN_BY_OURS = {"onnx_model.py": "model.onnx", "exported.py": "program.pt2"}
# What TorchServe takes for a missing key, where that depends on nothing else (ModelArchive.java).
STOCK_DEFAULTS = name_keys(
    batch_size=ServingSettings.batch_size, max_batch_delay_ms=ServingSettings.max_batch_delay_ms
)


@dataclass(frozen=True)
class OldArchive:
    """An unpacked archive.

    Attributes:
        path: the archive itself.
        folder: where all of its files are.
        handler: as TorchServe loads it: `image_classifier`, or a file of the archive; of an
            archive of offpath its custom handler, FILE.py:CLASS, or `offpath`.
        ours: the `handler:` settings of an archive of offpath; None for another.
        model: the class file, or the TorchScript file.
        weights: the state dict of the class file; None for TorchScript.
        labels: index_to_name.json, or None.
        server: batch, worker and time-out settings.
        files: name in the archive -> file, of all others.
        changes: what will differ from the old archive, one line each.
    """

    path: Path
    name: str
    version: str
    folder: Path
    handler: str
    ours: dict[str, Any] | None
    model: Path
    weights: Path | None
    labels: Path | None
    server: dict[str, Any]
    files: dict[str, Path]
    changes: tuple[str, ...]

    @property
    def has_stock_handler(self) -> bool:
        return self.handler in (STOCK_HANDLER, OURS)


def unpack(path: Path, folder: Path, has_own_handler: bool = False) -> OldArchive:
    """Unpacks an archive into an empty folder.

    Args:
        folder: receives the files; it must outlive the result.
        has_own_handler: whether `--handler` replaces the archive's handler.

    Raises:
        WrongOption: the file is no archive, or has another handler.
    """
    archive = read_mar(path, is_old_accepted=True)
    named = {key: archive.manifest["model"].get(key) for key in FILE_KEYS}
    definition, serialized = named["modelFile"], named["serializedFile"]
    if archive.has_our_handler and definition in RUN_BY_OURS:
        serialized, definition = RUN_BY_OURS[definition], None
    handler_file = f"{PurePosixPath(archive.handler.partition(':')[0]).stem}.py"
    has_code = archive.has_our_handler or has_own_handler or handler_file in archive.names
    serialized = _check_convertible(archive, serialized, has_code)
    unpack_mar(archive, folder)
    server, changes = _read_server(archive)
    handler, ours = archive.handler, None
    if archive.has_our_handler:
        handler, ours = _read_ours(archive, folder, changes)
    if LABELS not in archive.names:
        changes.append("labels: the archive has no index_to_name.json, so classes are numbers")
    if packages := named["requirementsFile"]:
        changes.append(f"{packages} is left out: install its packages where the workers run")
    known = {MANIFEST, LABELS, handler_file, handler.partition(":")[0], serialized}
    known.update(named.values())
    if archive.has_our_handler:
        known |= {name for name in archive.names if name.startswith(("offpath/", f"{FOLDER}/"))}
    weights = folder / serialized
    return OldArchive(
        path=path,
        name=archive.model_name,
        version=archive.model_version,
        folder=folder,
        handler=handler,
        ours=ours,
        model=folder / definition if definition else weights,
        weights=weights if definition else None,
        labels=folder / LABELS if LABELS in archive.names else None,
        server=server,
        files={name: folder / name for name in sorted(archive.names - known)},
        changes=tuple(changes + (STOCK_CHANGES if ours is None else OUR_CHANGES)),
    )


def _check_convertible(archive: MarFile, serialized: str | None, has_code: bool) -> str:
    """Returns the file of the weights; refuses an archive without it, or without a handler."""
    name = archive.path.name
    if archive.handler != STOCK_HANDLER and not has_code:
        raise WrongOption(
            f"{name} has TorchServe's handler {archive.handler!r}, not {STOCK_HANDLER}, and its "
            "code before and after the model cannot be converted; write that code as a subclass "
            "and pass --handler FILE.py (docs/your-handler.md)"
        )
    if serialized is None:
        raise WrongOption(f"{name} has no weights (no serializedFile in its manifest)")
    if serialized.endswith(".so"):
        raise WrongOption(
            f"{name} holds machine code for one device ({serialized}); build it from the program "
            "of torch.export.save: --model FILE.pt2"
        )
    return serialized


def _read_ours(archive: MarFile, folder: Path, changes: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns handler and settings of an unpacked archive of ours; adds what is left out."""
    section = (archive.model_config or {}).get(SECTION)
    section = section if isinstance(section, dict) else {}
    known = {one.name for one in dataclasses.fields(HandlerConfig)}
    settings = {key: value for key, value in section.items() if key in known}
    changes += [
        f"{SECTION}.{key}: this version has no such setting"
        for key in section
        if key not in settings
    ]
    if OUR_MARK not in archive.names:
        return OURS, settings
    name, _, class_name = (folder / OUR_MARK).read_text("utf-8").strip().partition(":")
    return f"{name}.py:{class_name}", settings


OUR_CHANGES = ["handler: this version's; the engine's files are made again"]
STOCK_CHANGES = [
    "pixels: size, crop, mean and std as before; a large JPEG is decoded at 1/2, 1/4 or 1/8 of its "
    "size (--set decode=exact decodes in full, as before)",
    "answers: as many classes as before, not indented; an image that cannot be read gets its own "
    "4xx instead of a 503 for its whole batch; grey, CMYK, palette and RGBA images are answered; "
    "the EXIF orientation is ignored as before",
    "weights: loaded with weights_only=True",
]


def format_changes(old: OldArchive, config: dict[str, Any]) -> list[str]:
    """Lists what changes for the user: settings before and after, then everything else."""
    lines = []
    for key in SERVER_SETTINGS:
        before = old.server.get(key, STOCK_DEFAULTS.get(key))
        if before != config[key]:
            lines.append(f"{key}: {before or 'chosen by TorchServe'} -> {config[key]}")
    return [*lines, *old.changes]


def _read_server(archive: MarFile) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings that our archive keeps, and a line for each that it leaves out."""
    kept, changes = {}, []
    for key, value in (archive.model_config or {}).items():
        if archive.has_our_handler and key == SECTION:
            continue
        try:
            check_server_setting(key, value)
            kept[key] = value
        except WrongOption:
            changes.append(f"{key}: {value!r} of model-config.yaml is left out")
    return kept, changes
