"""`offpath archive --from old.mar`: a stock image_classifier archive -> what ours is built from.

Its class file and weights go through the same doors as `--model` and `--weights`: nothing is
unpickled that could run. What will differ from the stock handler is said.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from offpath.archive.model_config import DEVICE_TYPES, SERVER_SETTINGS
from offpath.handler.errors import WrongOption

MANIFEST = "MAR-INF/MANIFEST.json"
STOCK_HANDLER = "image_classifier"
LABELS_FILE = "index_to_name.json"
# TorchServe's own where an archive and the register API say nothing (ModelArchive.java).
STOCK_DEFAULTS = {"batchSize": 1, "maxBatchDelay": 100}


@dataclass(frozen=True)
class OldArchive:
    """What a stock archive holds, unpacked.

    Attributes:
        name: its model's name.
        version: its model's version.
        model: the class file, or the TorchScript file.
        weights: the state dict beside a class file.
        labels: index_to_name.json, or None.
        server: its batch, worker and time-out settings.
        extra_files: what else it carries.
        changes: what will differ, a sentence each.
    """

    name: str
    version: str
    model: Path
    weights: Path | None
    labels: Path | None
    server: dict[str, Any]
    extra_files: tuple[Path, ...]
    changes: tuple[str, ...]


def unpack(path: Path, folder: Path, has_own_handler: bool = False) -> OldArchive:
    """Unpacks a stock archive into an empty folder.

    Args:
        path: the .mar.
        folder: where to; it must outlive the result.
        has_own_handler: `--handler` replaces whatever handler it has.

    Raises:
        WrongOption: no archive, another handler's, or one of ours already.
    """
    manifest, names = _extract(path, folder)
    model = manifest["model"]
    if "offpath/handler/classifier.py" in names:
        raise WrongOption(f"{path.name} is offpath's already; nothing to convert")
    handler = str(model.get("handler", ""))
    if handler != STOCK_HANDLER and not has_own_handler:
        raise WrongOption(
            f"{path.name} has the handler {handler!r}, not {STOCK_HANDLER}: what it does before "
            "and after the model is its own; write that as a subclass and add --handler FILE.py "
            "(docs/your-handler.md)"
        )
    files = {key: model.get(f"{key}File") for key in ("model", "serialized", "config")}
    if files["serialized"] is None:
        raise WrongOption(f"{path.name} has no weights (serializedFile)")
    serialized = folder / files["serialized"]
    labels = folder / LABELS_FILE if LABELS_FILE in names else None
    server, changes = _read_server(folder, files["config"])
    if labels is not None:
        changes += _tell_apart(labels)
    else:
        changes.append("labels: it has no index_to_name.json; classes are numbers")
    known = {MANIFEST, LABELS_FILE, handler, *filter(None, files.values())}
    if model.get("requirementsFile"):
        known.add(model["requirementsFile"])
        changes.append(
            f"{model['requirementsFile']} is left out: install it where the workers run"
        )
    extra, left_out = _sort_extra(folder, names - known)
    changes += left_out
    return OldArchive(
        name=model["modelName"],
        version=str(model.get("modelVersion", "1.0")),
        model=folder / files["model"] if files["model"] else serialized,
        weights=serialized if files["model"] else None,
        labels=labels,
        server=server,
        extra_files=extra,
        changes=tuple(changes + STOCK_CHANGES),
    )


STOCK_CHANGES = [
    "pixels: resize to 256, crop to 224 and ImageNet's mean and std as before; a large JPEG is "
    "decoded at 1/2, 1/4 or 1/8 (--set decode=exact: in full, as before)",
    "answers: top 5 as before, not indented; a picture that cannot be read gets a 4xx of its own, "
    "not a 503 for its whole batch; grey, CMYK, palette and RGBA pictures are answered",
    "weights: loaded with weights_only",
]


def format_changes(old: OldArchive, config: dict[str, Any]) -> list[str]:
    """What the user is told: settings before and after, then the rest."""
    lines = []
    for key in SERVER_SETTINGS:
        before = old.server.get(key, STOCK_DEFAULTS.get(key))
        if before != config[key]:
            lines.append(f"{key}: {before or 'by TorchServe'} -> {config[key]}")
    return [*lines, *old.changes]


def _extract(path: Path, folder: Path) -> tuple[dict[str, Any], set[str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(MANIFEST))
            names = {one for one in archive.namelist() if not one.endswith("/")}
            # extractall keeps every member below the folder, whatever its name says.
            archive.extractall(folder)
        manifest["model"]["modelName"]
    except FileNotFoundError as error:
        raise WrongOption(f"--from {str(path)!r}: no such file") from error
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError) as error:
        raise WrongOption(
            f"--from {str(path)!r} is not a TorchServe archive: {error}"
        ) from error
    return manifest, names


def _read_server(
    folder: Path, config_file: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Its settings that hold in ours too, and what is left out of its YAML."""
    if config_file is None:
        return {}, []
    import yaml

    try:
        config = yaml.safe_load((folder / config_file).read_text("utf-8")) or {}
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise WrongOption(f"{config_file} in it is not YAML: {error}") from error
    kept, changes = {}, []
    for key, value in config.items() if isinstance(config, dict) else ():
        low, high = SERVER_SETTINGS.get(key, (1, 0))
        if type(value) is int and low <= value <= high:
            kept[key] = value
        elif key == "deviceType" and value in DEVICE_TYPES:
            kept[key] = value
        else:
            changes.append(f"{key}: {value!r} in its {config_file} is left out")
    return kept, changes


def _tell_apart(labels: Path) -> list[str]:
    """Classes of one name get their index: replies are keyed by label."""
    try:
        mapping = json.loads(labels.read_text("utf-8-sig"))
        named = {
            index: value[-1] if isinstance(value, list) else value
            for index, value in mapping.items()
        }
        counts = Counter(named.values())
    except (ValueError, AttributeError, IndexError, TypeError):
        return []  # said by whoever reads it
    twice = [label for label, count in counts.items() if count > 1]
    if not twice:
        return []
    told_apart = {
        index: f"{label} ({index})" if label in twice else label
        for index, label in named.items()
    }
    labels.write_text(json.dumps(told_apart), encoding="utf-8")
    return [
        f"labels: {', '.join(twice[:3])} name several classes each; theirs get the index, as in "
        f"{next(v for i, v in told_apart.items() if named[i] in twice)!r}"
    ]


def _sort_extra(folder: Path, names: set[str]) -> tuple[tuple[Path, ...], list[str]]:
    """Files at the root go along; those in folders cannot."""
    nested = sorted(one for one in names if len(PurePosixPath(one).parts) > 1)
    extra = tuple(folder / one for one in sorted(names.difference(nested)))
    return extra, [f"left out: {', '.join(nested)}"] if nested else []
