"""The `handler:` section of model-config.yaml as one frozen dataclass, checked once at load.

Precedence: a field's default < model-config.yaml < the prediction log's environment variables.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offpath.handler.backends import ENGINES, PRECISIONS
from offpath.handler.decode import SCALE_MARGIN, DecodeOptions
from offpath.handler.errors import ConfigError
from offpath.handler.prediction_log.settings import PredictionLogSettings

DECODE_MODES = ("scaled", "exact", "nvjpeg")
# `auto`: backends/choose.py says what it stands for.
ENGINE_NAMES = ("auto", *ENGINES)
PRECISION_NAMES = ("auto", *sorted({p for ps in PRECISIONS.values() for p in ps}))
# Pillow refuses more, whatever we allow (twice PIL.Image.MAX_IMAGE_PIXELS).
MOST_PIXELS = 178_956_970


def _setting(default: Any, accepted: str, check: Callable[[Any], bool]) -> Any:
    """A dataclass field with what it accepts, in words and as a predicate."""
    return field(default=default, metadata={"accepted": accepted, "check": check})


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int_between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and low <= value <= high


def _is_number_between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_mean(value: Any) -> bool:
    return len(value) == 3 and all(_is_number(v) and 0 <= v <= 1 for v in value)


def _is_std(value: Any) -> bool:
    return len(value) == 3 and all(_is_number(v) and 0 < v <= 1 for v in value)


@dataclass(frozen=True)
class HandlerConfig:
    """Everything the request path may be told; lengths in pixels, sizes in bytes."""

    image_size: int = _setting(
        224, "an integer from 16 to 2048", _is_int_between(16, 2048)
    )
    resize_size: int = _setting(
        256, "an integer from 16 to 4096", _is_int_between(16, 4096)
    )
    mean: tuple[float, float, float] = _setting(
        (0.485, 0.456, 0.406), "three numbers from 0 to 1", _is_mean
    )
    std: tuple[float, float, float] = _setting(
        (0.229, 0.224, 0.225), "three numbers above 0, up to 1", _is_std
    )
    top_k: int = _setting(5, "an integer from 1 to 1000", _is_int_between(1, 1000))
    decode: str = _setting(
        "scaled",
        "one of " + ", ".join(DECODE_MODES),
        lambda value: value in DECODE_MODES,
    )
    scale_margin: float = _setting(
        SCALE_MARGIN, "a number from 1 to 8", _is_number_between(1, 8)
    )
    engine: str = _setting(
        "auto",
        "one of " + ", ".join(ENGINE_NAMES),
        lambda value: value in ENGINE_NAMES,
    )
    precision: str = _setting(
        "auto",
        "one of " + ", ".join(PRECISION_NAMES),
        lambda value: value in PRECISION_NAMES,
    )
    # How far an engine may move any probability from eager fp32's on the archive's photographs.
    parity_bound: float = _setting(
        0.05, "a number from 0 to 1", _is_number_between(0, 1)
    )
    # One launch per batch instead of one per layer; costs memory per batch size.
    cuda_graphs: bool = _setting(True, "true or false", _is_bool)
    exif_orientation: bool = _setting(False, "true or false", _is_bool)
    max_pixels: int = _setting(
        50_000_000,
        f"an integer from 1 to {MOST_PIXELS}",
        _is_int_between(1, MOST_PIXELS),
    )
    max_payload_bytes: int = _setting(
        20 * 2**20, "an integer from 1 to 2147483647", _is_int_between(1, 2**31 - 1)
    )
    # 0: cores / workers.
    threads: int = _setting(0, "an integer from 0 to 256", _is_int_between(0, 256))
    server_timing: bool = _setting(True, "true or false", _is_bool)
    metrics_interval_s: float = _setting(
        1.0, "a number from 0.1 to 3600", _is_number_between(0.1, 3600)
    )
    prediction_log: PredictionLogSettings = field(
        default_factory=lambda: PredictionLogSettings.from_mapping(None, {})
    )

    @property
    def decode_options(self) -> DecodeOptions:
        """How these settings have a picture decoded."""
        exact = self.decode == "exact"
        min_size = 0 if exact else int(self.resize_size * self.scale_margin)
        return DecodeOptions(min_size, self.exif_orientation, self.max_pixels)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any] | None, environ: Mapping[str, str] | None = None
    ) -> HandlerConfig:
        """Checks a `handler:` section.

        Args:
            mapping: the parsed YAML section; None stands for an empty one.
            environ: where OFFPATH_* variables are looked up; the process's own by default.

        Raises:
            ConfigError: an unknown key, a wrong type or a value out of range; the message names
                the key, the value and what is accepted.
        """
        if not isinstance(mapping, (Mapping, type(None))):
            raise ConfigError(
                f"handler: must be a mapping of settings, not {mapping!r}"
            )
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in (mapping or {}).items():
            if key not in fields:
                raise ConfigError(
                    f"unknown key {key!r} in handler:; accepted: {', '.join(fields)}"
                )
            if key != "prediction_log":
                values[key] = _checked(fields[key], value)
        values["prediction_log"] = _prediction_log(mapping or {}, environ)
        config = cls(**values)
        if config.resize_size < config.image_size:
            raise ConfigError(
                f"handler.resize_size {config.resize_size} is below handler.image_size "
                f"{config.image_size}: the crop would leave the picture"
            )
        if config.engine != "auto" and config.precision != "auto":
            _check_precision(config.engine, config.precision)
        return config


def _check_precision(engine: str, precision: str) -> None:
    if precision not in PRECISIONS[engine]:
        raise ConfigError(
            f"handler.precision is {precision!r}; handler.engine {engine!r} has "
            f"{', '.join(PRECISIONS[engine])}"
        )


def _checked(setting: dataclasses.Field[Any], value: Any) -> Any:
    accepted = setting.metadata["accepted"]
    if isinstance(setting.default, tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(
                f"handler.{setting.name} is {value!r}; accepted: {accepted}"
            )
        value = tuple(value)
    if not setting.metadata["check"](value):
        raise ConfigError(f"handler.{setting.name} is {value!r}; accepted: {accepted}")
    return value


def _prediction_log(
    mapping: Mapping[str, Any], environ: Mapping[str, str] | None
) -> PredictionLogSettings:
    environ = os.environ if environ is None else environ
    section = mapping.get("prediction_log")
    if not isinstance(section, (Mapping, type(None))):
        raise ConfigError(
            f"handler.prediction_log is {section!r}; accepted: a mapping of settings, with `uri`"
        )
    try:
        return PredictionLogSettings.from_mapping(section, environ)
    except ValueError as error:
        raise ConfigError(f"handler.{error}") from error
