"""Presets and options -> the archive's model-config.yaml, checked before anything is built.

Precedence: preset < the model's own preprocessing < options. This file is the only place where
batch, worker and time-out settings always hold (config.properties' `models=` loses against it).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, WrongOption

PRESETS_DIR = Path(__file__).parent / "presets"

# Setting -> accepted range, inclusive. 0 is no delay but TorchServe's default of 100 ms.
SERVER_SETTINGS: dict[str, tuple[int, int]] = {
    "minWorkers": (1, 1024),
    "maxWorkers": (1, 1024),
    "batchSize": (1, 4096),
    "maxBatchDelay": (1, 600_000),
    "responseTimeout": (1, 86_400),
    "startupTimeout": (1, 86_400),
}
DEVICE_TYPES = ("cpu", "gpu")


def load_preset(name: str) -> dict[str, Any]:
    """Reads an embedded preset by name, or a preset file.

    Raises:
        WrongOption: no such preset, no YAML mapping.
    """
    embedded = PRESETS_DIR / f"{name}.yaml"
    path = embedded if embedded.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PRESETS_DIR.glob("*.yaml")))
        raise WrongOption(f"--preset {name!r} is neither a file nor one of {known}")
    try:
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: not UTF-8, or 2026-13-45
        raise WrongOption(f"{path} is not YAML: {error}") from error
    if not isinstance(preset, dict):
        raise WrongOption(f"{path} must be a YAML mapping of settings")
    return preset


def make_model_config(
    preset: Mapping[str, Any], server: Mapping[str, Any], handler: Mapping[str, Any]
) -> dict[str, Any]:
    """Merges and checks all settings.

    Args:
        preset: from `load_preset`; may hold a `handler:` section.
        server: options over it, by TorchServe's names.
        handler: `handler:` settings over the preset's.

    Raises:
        WrongOption: names the setting, its value and what is accepted.
    """
    section = preset.get("handler") or {}
    if not isinstance(section, Mapping):
        raise WrongOption(f"handler: must be a mapping of settings, not {section!r}")
    config = {**preset, **server, "handler": {**section, **handler}}
    below, above = section.get("prediction_log"), handler.get("prediction_log")
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        # One option of the log must not throw away what the preset says of the others.
        config["handler"]["prediction_log"] = {**below, **above}
    for key, value in config.items():
        _check(key, value)
    missing = [key for key in SERVER_SETTINGS if key not in config]
    if missing:
        raise WrongOption(f"the preset lacks {', '.join(missing)}")
    if config["minWorkers"] > config["maxWorkers"]:
        raise WrongOption(
            f"minWorkers {config['minWorkers']} is above maxWorkers {config['maxWorkers']}"
        )
    return config


def merge_preprocessing(
    own: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The user's settings over the model's own; what followed from a replaced one goes with it."""
    merged = {**own, **settings}
    if {"image_size", "resize"} & {*settings} and "resize_size" not in settings:
        merged.pop("resize_size", None)
    if "channels" in settings:
        for key in ("mean", "std"):
            if key not in settings:
                merged.pop(key, None)
    return merged


def format_model_config(config: Mapping[str, Any]) -> str:
    """The content of model-config.yaml."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _check(key: str, value: Any) -> None:
    if key == "handler":
        try:
            HandlerConfig.from_mapping(value, environ={})
        except ConfigError as error:
            raise WrongOption(str(error)) from error
    elif key == "deviceType":
        if value not in DEVICE_TYPES:
            raise WrongOption(
                f"deviceType is {value!r}; accepted: {', '.join(DEVICE_TYPES)}"
            )
    elif key not in SERVER_SETTINGS:
        accepted = ", ".join([*SERVER_SETTINGS, "deviceType", "handler"])
        raise WrongOption(f"unknown setting {key!r}; accepted: {accepted}")
    else:
        low, high = SERVER_SETTINGS[key]
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            raise WrongOption(
                f"{key} is {value!r}; accepted: an integer from {low} to {high}"
            )
