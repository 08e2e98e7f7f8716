"""Reads a .mar file: its manifest and its model-config.yaml."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from offpath.handler.errors import WrongOption

MANIFEST = "MAR-INF/MANIFEST.json"
OUR_HANDLER = "offpath/handler/classifier.py"
HAND_OVER = "offpath/handler/request/body_from_front_door.py"


@dataclass(frozen=True)
class MarFile:
    """Metadata of an archive.

    Attributes:
        path: the file.
        model_name: name under which TorchServe serves it by default.
        model_version: version of the model.
        handler: entry point of the handler.
        model_config: content of its model-config.yaml; None without one.
        has_our_handler: the archive contains offpath's handler.
        takes_names: its handler accepts the name of a body's file from the front door.
    """

    path: Path
    model_name: str
    model_version: str
    handler: str
    model_config: dict[str, Any] | None
    has_our_handler: bool = False
    takes_names: bool = False


def read_mar(path: Path) -> MarFile:
    """Reads an archive's manifest and model config.

    Raises:
        WrongOption: the file is missing or not a .mar, or its YAML is not a mapping.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            model = json.loads(archive.read(MANIFEST))["model"]
            config_name = model.get("configFile")
            text = archive.read(config_name) if config_name else None
            names = archive.namelist()
    except FileNotFoundError as error:
        raise WrongOption(
            f"there is no archive at {path}; `offpath archive` makes one"
        ) from error
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise WrongOption(
            f"{path} is not a TorchServe archive ({error}); expected a .mar made by "
            "`offpath archive` or torch-model-archiver"
        ) from error
    return MarFile(
        path=path,
        model_name=model["modelName"],
        model_version=str(model.get("modelVersion", "1.0")),
        handler=model.get("handler", ""),
        model_config=None if text is None else _parse_model_config(path, text),
        has_our_handler=OUR_HANDLER in names,
        takes_names=HAND_OVER in names,
    )


def read_archives(
    model_store: Path, entries: Iterable[str]
) -> list[tuple[str, MarFile]]:
    """Reads the archives to serve, each with the name that its model is served under.

    Args:
        model_store: folder with the archives.
        entries: `file.mar`, or `name=file.mar`, as TorchServe's load_models takes them.

    Raises:
        WrongOption: a file is missing or not an archive.
    """
    archives = []
    for entry in entries:
        name, _, file = entry.rpartition("=")
        archive = read_mar(model_store / file)
        archives.append((name or archive.model_name, archive))
    return archives


def _parse_model_config(path: Path, text: bytes) -> dict[str, Any]:
    try:
        config = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise WrongOption(
            f"model-config.yaml in {path} is not YAML: {error}"
        ) from error
    if not isinstance(config, dict):
        raise WrongOption(f"model-config.yaml in {path} is not a mapping")
    return config
