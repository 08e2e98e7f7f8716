"""Presets and options -> the archive's model-config.yaml, checked before anything is built.

Precedence: preset < the model's own preprocessing < options. TorchServe always honours the batch,
worker and time-out settings of this file; `models=` in config.properties loses against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.config_section import suggest
from offpath.handler.errors import ConfigError
from offpath.handler.serving_settings import (
    DEVICE_TYPES,
    KEYS,
    RANGES,
    ServingSettings,
    is_accepted,
)

MAX_CHARACTERS = 100_000
PRESETS_DIR = Path(__file__).parent / "presets"

# Settings that every model-config.yaml of ours has -> accepted range, inclusive.
SERVER_SETTINGS = {KEYS[name]: accepted for name, accepted in RANGES.items()}


def load_yaml(text: str | bytes, source: str) -> Any:
    """Parses YAML of at most MAX_CHARACTERS, which an alias counts as often as it is followed.

    Args:
        source: where it comes from, for the message.

    Raises:
        WrongOption: the text is too long, is no YAML, or holds a value that Python cannot print.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"longer than {MAX_CHARACTERS:,} characters")
        value = yaml.load(text, _BoundedLoader)
        repr(value)  # Python refuses to print some large numbers.
    # PyYAML lets errors of many kinds through: `!!bool x` is a KeyError, a deep list a recursion.
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = " ".join(f"{getattr(error, 'problem', None) or error}".split())
        raise WrongOption(f"{source} is not valid YAML: {problem}{line}") from error
    return value


class _BoundedLoader(yaml.SafeLoader):
    """Counts characters as if each alias were written out: ten lines can stand for gigabytes."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._characters = 0
        self._length_of: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._characters
        node = super().compose_node(parent, index)
        if is_alias:
            # A node without a length is not complete yet, so it contains itself.
            self._characters += self._length_of.get(id(node), MAX_CHARACTERS)
        else:
            own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            self._characters += 1 + own
            self._length_of[id(node)] = self._characters - before
        if self._characters > MAX_CHARACTERS:
            raise ValueError(f"its aliases stand for more than {MAX_CHARACTERS:,} characters")
        if isinstance(node, yaml.MappingNode) and not is_alias:
            _check_keys(node)
        return node


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuses a key that stands twice, of which parsers silently take the last."""
    found = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in found:
            problem = f"the key {key.value!r:.80} stands twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        found.add(key.value if isinstance(key, yaml.ScalarNode) else None)


@dataclass(frozen=True)
class ModelConfig:
    """A checked model-config.yaml.

    Attributes:
        settings: the content of the file; `handler:` is a mapping in it.
        handler: the `handler:` section, parsed.
        serving: the settings for servers, parsed.
    """

    settings: dict[str, Any]
    handler: HandlerConfig
    serving: ServingSettings

    @property
    def device_type(self) -> str:
        return self.serving.device_type or "cpu"

    def with_handler(self, **values: Any) -> ModelConfig:
        """Returns a copy with these values in `handler:`; values in force already add no line."""
        changes = {
            key: value for key, value in values.items() if value != getattr(self.handler, key)
        }
        section = {**self.settings.get("handler", {}), **changes}
        settings = {**self.settings, "handler": section}
        return replace(self, settings=settings, handler=replace(self.handler, **changes))


def load_preset(name: str) -> dict[str, Any]:
    """Reads an embedded preset by name, or a preset file.

    Raises:
        WrongOption: there is no such preset, or a setting in it is wrong.
    """
    embedded = PRESETS_DIR / f"{name}.yaml"
    path = embedded if embedded.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PRESETS_DIR.glob("*.yaml")))
        raise WrongOption(f"--preset {name!r}: no such preset or file; presets: {known}")
    preset = load_yaml(path.read_bytes(), str(path))
    if not isinstance(preset, dict):
        raise WrongOption(f"{path} must be a YAML mapping of settings")
    try:
        _check_given(preset)
    except WrongOption as error:
        raise WrongOption(f"--preset {str(path)!r}: {error}") from error
    return preset


def make_model_config(
    preset: Mapping[str, Any], server: Mapping[str, Any], handler: Mapping[str, Any]
) -> ModelConfig:
    """Merges and checks all settings.

    Args:
        preset: from `load_preset`; may hold a `handler:` section.
        server: options that override the preset, by TorchServe's names.
        handler: `handler:` settings that override the preset's.

    Raises:
        WrongOption: names the setting, its value and what is accepted.
    """
    section = preset.get("handler") or {}
    if not isinstance(section, Mapping):
        raise WrongOption(f"handler: must be a mapping of settings, not {section!r}")
    merged = {**section, **handler}
    below, above = section.get("prediction_log"), handler.get("prediction_log")
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        # One option of the log must not discard the preset's other options of the log.
        merged["prediction_log"] = {**below, **above}
    return check_model_config({**preset, **server, "handler": merged})


def check_model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """Checks the content of a model-config.yaml and parses its `handler:` section.

    Raises:
        WrongOption: names the setting, its value and what is accepted.
    """
    handler = _check_given(settings)
    missing = [key for key in SERVER_SETTINGS if key not in settings]
    if missing:
        raise WrongOption(f"the preset lacks {', '.join(missing)}; add them to it")
    serving = ServingSettings.from_mapping(settings)
    least, most = serving.min_workers, serving.max_workers
    if least > most:
        raise WrongOption(f"minWorkers {least} is above maxWorkers {most}")
    return ModelConfig(dict(settings), handler, serving)


def _check_given(settings: Mapping[str, Any]) -> HandlerConfig:
    """Checks the settings that are there; a preset may leave some to options."""
    for key, value in settings.items():
        if key != "handler":
            check_server_setting(key, value)
    try:
        return HandlerConfig.from_mapping(settings.get("handler"), environ={})
    except ConfigError as error:
        raise WrongOption(str(error)) from error


def merge_preprocessing(models: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the model's own preprocessing with the user's settings, which win.

    A value of the model's that followed from a replaced one is dropped: the resize size goes with
    the image size, mean and standard deviation go with the channels, their order and their scale.
    """
    merged = {**models, **given}
    if {"image_size", "resize"} & {*given} and "resize_size" not in given:
        merged.pop("resize_size", None)
    if {"channels", "channel_order", "pixel_scale"} & {*given}:
        for key in ("mean", "std"):
            if key not in given:
                merged.pop(key, None)
    return merged


def format_model_config(settings: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)


def check_server_setting(key: str, value: Any) -> None:
    """Checks a setting for servers.

    Raises:
        WrongOption: there is no such setting, or `offpath archive` does not accept the value.
    """
    name = next((name for name, its_key in KEYS.items() if its_key == key), None)
    if name is None:
        keys = [*KEYS.values(), "handler"]
        hint = suggest(str(key), keys) or f"; accepted: {', '.join(keys)}"
        raise WrongOption(f"unknown setting {key!r}{hint}")
    low, high = RANGES.get(name, (None, None))
    if is_accepted(name, value) and (high is None or value <= high):
        return
    accepted = {
        "device_type": ", ".join(DEVICE_TYPES),
        "device_ids": "a list of GPUs such as [0, 1], which the workers take in turn",
    }.get(name, f"an integer from {low} to {high}")
    raise WrongOption(f"{key} is {value!r}; accepted: {accepted}")
