"""Reads from config.properties which models are served, and their settings in force.

The precedence is TorchServe's (`initModelStore` in ModelServer.java, `createModel` in
ModelManager.java, `setModelState` in Model.java): a snapshot wins over an archive's
model-config.yaml, which wins over `models={...}`, which wins over the defaults for all models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import MarFile, read_archives
from offpath.errors import WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import KEYS, RANGES, is_accepted
from offpath.serving.server.server_settings import ServerSettings, read_effective

SNAPSHOT, MODELS = "model_snapshot", "models"
WORKERS = KEYS["min_workers"], KEYS["max_workers"]
# An archive with a model-config.yaml has TorchServe's default of what is not in there.
DEFAULT_TIMEOUTS = {
    KEYS["response_timeout_s"]: "default_response_timeout",
    KEYS["startup_timeout_s"]: "default_startup_timeout",
}
# One folder for each GPU.
DRIVER = Path("/proc/driver/nvidia/gpus")


def read_served(settings: ServerSettings) -> list[tuple[str, MarFile]]:
    """Reads the archives to serve, each with its name and with its settings in force.

    Raises:
        WrongOption: an archive or the properties file cannot be read.
    """
    properties = read_effective(settings)
    return [
        (name, apply_properties(archive, name, properties))
        for name, archive in read_archives(settings.model_store, settings.models)
    ]


def list_wanted(properties: Mapping[str, str]) -> list[str]:
    """Returns the entries of the snapshot or of load_models; empty for all of the store."""
    if properties.get(SNAPSHOT):
        versions = [
            (name, one)
            for name, models in read_models(properties, SNAPSHOT).items()
            for one in models.values()
        ]
        # Paths without a version lead to a model's first archive.
        versions.sort(key=lambda version: not version[1].get("defaultVersion"))
        return [f"{name}={one.get('marName')}" for name, one in versions]
    names = properties.get("load_models", "")
    return [] if names.lower() == "all" else [name for name in names.split(",") if name]


def apply_properties(archive: MarFile, name: str, properties: Mapping[str, str]) -> MarFile:
    """Returns the archive with its settings in force in place of its own model-config.yaml."""
    own, serving = archive.model_config, archive.serving
    version = archive.model_version
    restored = _find_numbers(properties, SNAPSHOT, name, version)
    given = _find_numbers(properties, MODELS, name, version)
    if restored:
        return replace(archive, model_config={**(own or {}), **restored})
    if own is None:
        defaults = {k: properties.get(key, "") for k, key in DEFAULT_TIMEOUTS.items()}
        given = {k: int(value) for k, value in defaults.items() if value} | given
    wins = {KEYS[one] for one in serving.asked if is_accepted(one, serving.asked[one])}
    wins |= set() if own is None else DEFAULT_TIMEOUTS.keys()
    wins = wins | set(WORKERS) if serving.names_workers else wins - set(WORKERS)
    given = {key: value for key, value in given.items() if key not in wins}
    if given.keys() & set(WORKERS):
        default = count_default_workers(properties)
        least = given.get(WORKERS[0], default)
        given |= {WORKERS[0]: least, WORKERS[1]: max(least, given.get(WORKERS[1], default))}
    return replace(archive, model_config={**(own or {}), **given}) if given else archive


def count_default_workers(properties: Mapping[str, str]) -> int:
    """Returns the workers that TorchServe starts for a model whose number is not given."""
    gpus = len(list(DRIVER.glob("*"))) if DRIVER.is_dir() else 0
    return int(properties.get("default_workers_per_model", 0)) or gpus or count_cores()


def _find_numbers(
    properties: Mapping[str, str], key: str, name: str, version: str
) -> dict[str, int]:
    """Returns the settings of one version in `models` or in the snapshot."""
    found = read_models(properties, key).get(name, {}).get(version, {})
    return {KEYS[one]: found[KEYS[one]] for one in RANGES if is_accepted(one, found.get(KEYS[one]))}


def read_models(properties: Mapping[str, str], key: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Reads `models` or the snapshot: name -> version -> settings.

    Raises:
        WrongOption: it has another form.
    """
    try:
        content = json.loads(properties.get(key) or "{}")
        models: dict[str, dict[str, dict[str, Any]]] = content
        if key == SNAPSHOT:
            models = content.get("models", {})
        if all(isinstance(one, dict) for found in models.values() for one in found.values()):
            return models
    except (ValueError, AttributeError, RecursionError):
        pass
    raise WrongOption(
        f"config.properties: {key} is {properties[key]!r:.80}, expected JSON such as "
        '{"NAME": {"1.0": {"minWorkers": 1, ...}}}, in a snapshot under "models"'
    )
