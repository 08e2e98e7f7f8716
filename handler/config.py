"""The `handler:` section of model-config.yaml as one frozen dataclass, checked once at load.

Precedence: a field's default < model-config.yaml < the prediction log's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offpath.handler.config_section import (
    choice,
    flag,
    integer,
    mapping,
    number,
    off_or_url,
    one_that,
    optional,
    per_channel,
    positive,
    read_section,
    setting,
)
from offpath.handler.errors import ConfigError
from offpath.handler.image.decode import SCALE_MARGIN, DecodeOptions
from offpath.handler.image.geometry import CHANNELS, INTERPOLATIONS, RESIZES, Square
from offpath.handler.model.engines import ENGINES, PRECISIONS
from offpath.handler.prediction_log.log_settings import PredictionLogSettings

SECTION = "handler"
DECODE_MODES = ("scaled", "exact", "nvjpeg")
# head.py applies them; `auto` is decided when the archive is built (archive/model_probe.py).
ACTIVATIONS = ("softmax", "sigmoid", "none", "auto")
# `auto`: backends/choose.py says what it stands for.
ENGINE_NAMES = ("auto", *ENGINES)
PRECISION_NAMES = ("auto", *sorted({p for ps in PRECISIONS.values() for p in ps}))
# What a model's input is made by; a thin client and other servers need the same.
INPUT_SETTINGS = (
    *("image_size", "resize_size", "resize", "interpolation"),
    *("channels", "mean", "std", "fill"),
)
# Pillow refuses more, whatever we allow (twice PIL.Image.MAX_IMAGE_PIXELS).
MOST_PIXELS = 178_956_970
# A float32 as JSON writes it, with its comma.
EXPLANATION_NUMBER_BYTES = 25


@dataclass(frozen=True)
class HandlerConfig:
    """Everything the request path may be told; lengths in pixels, sizes in bytes."""

    image_size: int = setting(224, integer(16, 2048))
    # Where it is not given it follows from `resize` and `image_size`: `_complete_input`.
    resize_size: int = setting(256, integer(16, 4096))
    resize: str = setting("shorter", choice(RESIZES))
    interpolation: str = setting("bilinear", choice(INTERPOLATIONS))
    channels: int = setting(
        3, one_that("1 or 3", lambda value: type(value) is int and value in CHANNELS)
    )
    mean: tuple[float, ...] = setting(
        (0.485, 0.456, 0.406),
        per_channel("one number a channel, from 0 to 1", number(0, 1)),
    )
    std: tuple[float, ...] = setting(
        (0.229, 0.224, 0.225),
        per_channel("one number a channel, above 0, up to 1", positive(1)),
    )
    fill: tuple[int, ...] = setting(
        (0, 0, 0),
        per_channel("one integer a channel, from 0 to 255", integer(0, 255)),
    )
    activation: str = setting("softmax", choice(ACTIVATIONS))
    # Several labels a picture: all classes that reach it, instead of the best `top_k`.
    threshold: float | None = setting(None, optional(number(0, 1)))
    top_k: int = setting(5, integer(1, 1000))
    decode: str = setting("scaled", choice(DECODE_MODES))
    scale_margin: float = setting(SCALE_MARGIN, number(1, 8))
    engine: str = setting("auto", choice(ENGINE_NAMES))
    precision: str = setting("auto", choice(PRECISION_NAMES))
    # How far an engine may move any probability from eager fp32's on the archive's photographs.
    parity_bound: float = setting(0.05, number(0, 1))
    # One launch per batch instead of one per layer; costs memory per batch size.
    cuda_graphs: bool = setting(True, flag())
    exif_orientation: bool = setting(False, flag())
    max_pixels: int = setting(50_000_000, integer(1, MOST_PIXELS))
    max_payload_bytes: int = setting(20 * 2**20, integer(1, 2**31 - 1))
    # One costs a worker most of a second.
    explanations: bool = setting(False, flag())
    # Of one reply; at most max_response_size of config.properties, over which TorchServe ends the
    # worker and with it the whole batch.
    max_response_bytes: int = setting(6_553_500, integer(1024, 2**31 - 1))
    # 0: cores / workers.
    threads: int = setting(0, integer(0, 256))
    server_timing: bool = setting(True, flag())
    metrics_interval_s: float = setting(1.0, number(0.1, 3600))
    # OpenTelemetry, by OTLP/HTTP: the collector, and the share of requests without a traceparent.
    trace_endpoint: str = setting("off", off_or_url())
    trace_share: float = setting(0.01, number(0, 1))
    # For a handler of one's own: whatever it reads from `self.config.own`.
    own: Mapping[str, Any] = field(default_factory=dict, metadata={"reader": mapping()})
    prediction_log: PredictionLogSettings = field(
        default_factory=lambda: PredictionLogSettings.from_mapping(None, {}),
        # As it is: from_mapping reads it with the environment.
        metadata={"reader": lambda value, key: value},
    )

    @property
    def decode_options(self) -> DecodeOptions:
        """How these settings have a picture decoded."""
        return DecodeOptions.for_square(
            self.square,
            0.0 if self.decode == "exact" else self.scale_margin,
            exif_orientation=self.exif_orientation,
            max_pixels=self.max_pixels,
        )

    @property
    def square(self) -> Square:
        """How these settings have a picture made into the model's input."""
        return Square(
            self.image_size,
            self.resize_size,
            self.resize,
            self.interpolation,
            self.channels,
            self.fill,
        )

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
        values = read_section(cls, mapping, SECTION)
        values["prediction_log"] = PredictionLogSettings.from_mapping(
            values.get("prediction_log"),
            os.environ if environ is None else environ,
            f"{SECTION}.prediction_log",
        )
        _complete_input(values)
        config = cls(**values)
        _check_sizes(config)
        if config.activation == "softmax" and config.threshold is not None:
            raise ConfigError(
                f"handler.threshold is {config.threshold} and handler.activation softmax; "
                "accepted: activation sigmoid or none, for several labels a picture"
            )
        if config.explanations:
            _check_explanation_size(config)
        if config.engine != "auto" and config.precision != "auto":
            _check_precision(config.engine, config.precision)
        return config


def _check_explanation_size(config: HandlerConfig) -> None:
    most = config.channels * config.image_size**2 * EXPLANATION_NUMBER_BYTES
    if most > config.max_response_bytes:
        raise ConfigError(
            f"handler.explanations: a reply for handler.image_size {config.image_size} takes up to "
            f"{most} bytes, over handler.max_response_bytes {config.max_response_bytes}; raise it, "
            "and max_response_size of config.properties to the same, or leave explanations off"
        )


def _complete_input(values: dict[str, Any]) -> None:
    """Fills in what follows from other settings of the input: one value for all channels, and the
    size that a picture is resized to before the crop (the centre's 87.5 %, as ImageNet's).
    """
    channels = values.get("channels", 3)
    if channels == 1:
        for key in ("mean", "std"):
            if key not in values:
                raise ConfigError(
                    f"handler.channels is 1 and handler.{key} is not given; it needs one number, "
                    "as the model was trained, for instance 0.5"
                )
        values.setdefault("fill", (0,))
    for key in ("mean", "std", "fill"):
        given = values.get(key, (0,))
        if len(given) == 1 and key in values:
            values[key] = given * channels
        elif len(given) not in (1, channels):
            raise ConfigError(
                f"handler.{key} has {len(given)} numbers and handler.channels is {channels}; "
                "accepted: one number a channel"
            )
    if "resize_size" not in values:
        size, is_cropped = (
            values.get("image_size", 224),
            values.get("resize", "shorter") == "shorter",
        )
        values["resize_size"] = size * 8 // 7 if is_cropped else size


def _check_sizes(config: HandlerConfig) -> None:
    sizes = (
        f"handler.resize_size is {config.resize_size} and handler.image_size "
        f"{config.image_size}"
    )
    if config.resize == "letterbox" and config.resize_size != config.image_size:
        raise ConfigError(f"{sizes}; a letterbox has one size: leave resize_size out")
    if config.resize_size < config.image_size:
        raise ConfigError(f"{sizes}: the crop would leave the picture")


def _check_precision(engine: str, precision: str) -> None:
    if precision not in PRECISIONS[engine]:
        raise ConfigError(
            f"handler.precision is {precision!r}; handler.engine {engine!r} has "
            f"{', '.join(PRECISIONS[engine])}"
        )
