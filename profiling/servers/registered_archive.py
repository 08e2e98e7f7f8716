"""The archive that settings are registered with, and copies of it with other threads."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from offpath.archive.model_config import (
    format_model_config,
    load_preset,
    make_model_config,
)
from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.archives import build_offpath, host_preset
from offpath.serving.mar_file import MANIFEST, MarFile, read_mar

# The store's name for the archive as it is.
BASE = "base.mar"
WORKER_SETTINGS = ("minWorkers", "maxWorkers")


@dataclass(frozen=True)
class RegisteredArchive:
    """An archive in a model store of its own.

    Attributes:
        preset: the settings that others are held against, as a preset.
        identity: SHA-256 of the archive, shortened.
    """

    mar: MarFile
    preset: dict[str, Any]
    identity: str

    @property
    def store(self) -> Path:
        """The model store."""
        return self.mar.path.parent

    @property
    def has_our_handler(self) -> bool:
        """Whether its threads can be set."""
        return self.mar.has_our_handler

    def with_threads(self, threads: int) -> str:
        """File name in the store of the copy with so many threads; made on first use."""
        if not threads:
            return self.mar.path.name
        target = self.store / f"threads-{threads}.mar"
        if not target.exists():
            write_copy(self.mar, threads, target)
        return target.name


def prepare_archive(
    model: str | None, mar: Path | None, preset: str | None, store: Path
) -> RegisteredArchive:
    """Builds the archive of an embedded model, or copies the user's, into a store.

    Args:
        preset: name or file; None: the host's for a model, the archive's own settings for a .mar.

    Raises:
        ExpectedError: no such model, archive or preset.
    """
    store.mkdir(parents=True)
    if mar is not None:
        own = read_mar(mar)
        settings = load_preset(preset) if preset else own.model_config
        settings = settings or load_preset(host_preset())
        make_model_config(settings, {}, {})
        shutil.copyfile(mar, store / BASE)
    else:
        settings = load_preset(preset or host_preset())
        under_test = load_model(model or "")
        config = make_model_config(settings, {}, under_test.source.handler)
        build_offpath(under_test, config.settings, store).rename(store / BASE)
    content = (store / BASE).read_bytes()
    identity = hashlib.sha256(content).hexdigest()[:16]
    return RegisteredArchive(read_mar(store / BASE), dict(settings), identity)


def write_copy(base: MarFile, threads: int, target: Path) -> None:
    """Copies an archive with `handler: threads:` changed."""
    with zipfile.ZipFile(base.path) as old, zipfile.ZipFile(target, "w") as new:
        config_name = json.loads(old.read(MANIFEST))["model"].get("configFile")
        if config_name is None:
            raise ExpectedError(
                f"{base.path.name} has our handler but no model-config.yaml: build it again with"
                " `offpath archive`"
            )
        for name in old.namelist():
            content = old.read(name)
            if name == config_name:
                content = set_threads(yaml.safe_load(content) or {}, threads)
            new.writestr(name, content)


def set_threads(config: Mapping[str, Any], threads: int) -> bytes:
    """A model-config.yaml with the threads in it, and without workers, which beat `register`."""
    kept = {key: value for key, value in config.items() if key not in WORKER_SETTINGS}
    kept["handler"] = {**(config.get("handler") or {}), "threads": threads}
    return format_model_config(kept).encode()
