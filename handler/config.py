"""The `handler:` section of model-config.yaml as one frozen dataclass, checked once at load.

Precedence: a field's default < model-config.yaml < the prediction log's environment variables.
"""

from __future__ import annotations

import math
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
    size,
)
from offpath.handler.errors import ConfigError
from offpath.handler.image.decode import SCALE_MARGIN, DecodeOptions
from offpath.handler.image.geometry import (
    CHANNELS,
    INTERPOLATIONS,
    RESIZES,
    InputGeometry,
    both_sides,
    parse_size,
)
from offpath.handler.model.engines.engine import ENGINES, PRECISIONS
from offpath.handler.prediction_log.log_settings import PredictionLogSettings

SECTION = "handler"
CHANNEL_ORDERS = ("rgb", "bgr")
DECODE_MODES = ("scaled", "exact", "nvjpeg")
# Applied by model/outputs.py; the archive builder replaces `auto` (archive/model_probe.py).
ACTIVATIONS = ("softmax", "sigmoid", "none", "auto")
# model/engines/choose.py documents what `auto` means.
ENGINE_NAMES = ("auto", *ENGINES)
PRECISION_NAMES = ("auto", *sorted({p for ps in PRECISIONS.values() for p in ps}))
# The settings that define a model's input; a thin client and other servers need the same values.
INPUT_SETTINGS = (
    *("image_size", "resize_size", "resize", "interpolation"),
    *("channels", "channel_order", "pixel_scale", "mean", "std", "fill"),
)
# What a thin client must know of them, and of decoding, to send the pixels that the model takes.
THIN_SETTINGS = (
    *("image_size", "resize_size", "resize", "interpolation", "channels", "channel_order", "fill"),
    *("exif_orientation", "decode", "scale_margin"),
)
# Pillow refuses more in any case (twice PIL.Image.MAX_IMAGE_PIXELS).
MAX_PIXELS = 178_956_970
# Longest float32 in JSON, with its comma.
EXPLANATION_NUMBER_BYTES = 25


def is_output(value: object) -> bool:
    """Returns True for a name of an output, or its position."""
    return value != "" if isinstance(value, str) else type(value) is int and value >= 0


@dataclass(frozen=True)
class HandlerConfig:
    """All settings of the request path; lengths in pixels, sizes in bytes."""

    # A number for both sides, or a text such as "256x128" (height x width).
    image_size: int | str = setting(224, size(16, 2048))
    # The default follows from `resize` and `image_size`: see `_complete_input`.
    resize_size: int | str = setting(256, size(16, 4096))
    resize: str = setting("shorter", choice(RESIZES))
    interpolation: str = setting("bilinear", choice(INTERPOLATIONS))
    channels: int = setting(
        3, one_that("1 or 3", lambda value: type(value) is int and value in CHANNELS)
    )
    # Values per channel (mean, std, fill) are in this order.
    channel_order: str = setting("rgb", choice(CHANNEL_ORDERS))
    # The pixel value that stands for white before the mean is subtracted.
    pixel_scale: int = setting(
        1, one_that("1 or 255", lambda value: type(value) is int and value in (1, 255))
    )
    mean: tuple[float, ...] = setting(
        (0.485, 0.456, 0.406),
        per_channel("one number per channel, from 0 to pixel_scale", number(0, 255)),
    )
    std: tuple[float, ...] = setting(
        (0.229, 0.224, 0.225),
        per_channel("one number per channel, above 0, up to pixel_scale", positive(255)),
    )
    fill: tuple[int, ...] = setting(
        (0, 0, 0),
        per_channel("one integer per channel, from 0 to 255", integer(0, 255)),
    )
    # Name or position of the scores in what the model returns; None for a model that returns only
    # them. The archive builder finds it (archive/model_probe.py).
    output: str | int | None = setting(
        None, optional(one_that("a name, or a position from 0", is_output))
    )
    activation: str = setting("softmax", choice(ACTIVATIONS))
    # For several labels per image: return all classes that reach it, instead of the best `top_k`.
    threshold: float | None = setting(None, optional(number(0, 1)))
    top_k: int = setting(5, integer(1, 1000))
    decode: str = setting("scaled", choice(DECODE_MODES))
    scale_margin: float = setting(SCALE_MARGIN, number(1, 8))
    engine: str = setting("auto", choice(ENGINE_NAMES))
    precision: str = setting("auto", choice(PRECISION_NAMES))
    # Largest difference between an engine's probabilities and eager fp32's, on the archive's
    # photographs.
    parity_bound: float = setting(0.05, number(0, 1))
    # One launch per batch instead of one per layer; costs memory for each batch size.
    cuda_graphs: bool = setting(True, flag())
    # Decode a batch while the one before computes; None does so on a GPU.
    read_ahead: bool | None = setting(None, optional(flag()))
    exif_orientation: bool = setting(False, flag())
    max_pixels: int = setting(50_000_000, integer(1, MAX_PIXELS))
    max_payload_bytes: int = setting(20 * 2**20, integer(1, 2**31 - 1))
    # Milliseconds that a request has (deadline.py); 0 is no limit. Headers may ask for less.
    deadline_ms: int = setting(0, integer(0, 3_600_000))
    # One explanation takes a worker up to a second.
    explanations: bool = setting(False, flag())
    # Limit on one reply, at most max_response_size of config.properties: beyond that TorchServe
    # ends the worker, and with it the whole batch.
    max_response_bytes: int = setting(6_553_500, integer(1024, 2**31 - 1))
    # 0 stands for cores / workers.
    threads: int = setting(0, integer(0, 256))
    server_timing: bool = setting(True, flag())
    metrics_interval_s: float = setting(1.0, number(0.1, 3600))
    # OpenTelemetry by OTLP/HTTP: the collector, and the share of requests without a traceparent
    # that are traced.
    trace_endpoint: str = setting("off", off_or_url())
    trace_share: float = setting(0.01, number(0, 1))
    # Settings of a custom handler, which reads them from `self.config.own`.
    own: Mapping[str, Any] = field(default_factory=dict, metadata={"reader": mapping()})
    prediction_log: PredictionLogSettings = field(
        default_factory=lambda: PredictionLogSettings.from_mapping(None, {}),
        # Passed through: from_mapping reads it together with the environment.
        metadata={"reader": lambda value, key: value},
    )

    @property
    def decode_options(self) -> DecodeOptions:
        return DecodeOptions.for_input(
            self.input_geometry,
            0.0 if self.decode == "exact" else self.scale_margin,
            exif_orientation=self.exif_orientation,
            max_pixels=self.max_pixels,
        )

    @property
    def thin_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in THIN_SETTINGS}

    @property
    def input_geometry(self) -> InputGeometry:
        return InputGeometry(
            parse_size(self.image_size),
            parse_size(self.resize_size),
            self.resize,
            self.interpolation,
            self.channels,
            self.fill if self.channel_order == "rgb" else self.fill[::-1],
        )

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any] | None, environ: Mapping[str, str] | None = None
    ) -> HandlerConfig:
        """Checks a `handler:` section.

        Args:
            mapping: the parsed YAML section; None stands for an empty section.
            environ: where to look up OFFPATH_* variables; by default the process's environment.

        Raises:
            ConfigError: a key is unknown, or a value has the wrong type or is out of range. The
                message names the key, the value and what is accepted.
        """
        values = read_section(cls, mapping, SECTION)
        prediction_log = PredictionLogSettings.from_mapping(
            values.get("prediction_log"),
            os.environ if environ is None else environ,
            f"{SECTION}.prediction_log",
        )
        completed = {**values, **_complete_input(values)}
        config = cls(**{**completed, "prediction_log": prediction_log})
        _check_sizes(config)
        _check_channels(config)
        if config.activation == "softmax" and config.threshold is not None:
            raise ConfigError(
                f"handler.threshold is {config.threshold} and handler.activation is softmax; "
                "accepted with a threshold: activation sigmoid or none (several labels per image)"
            )
        if config.explanations:
            _check_explanation_size(config)
        if config.engine != "auto" and config.precision != "auto":
            _check_precision(config.engine, config.precision)
        return config


def _check_explanation_size(config: HandlerConfig) -> None:
    most = math.prod(config.input_geometry.shape) * EXPLANATION_NUMBER_BYTES
    if most > config.max_response_bytes:
        raise ConfigError(
            f"handler.explanations is true, but a reply for handler.image_size {config.image_size} "
            f"takes up to {most} bytes and handler.max_response_bytes is "
            f"{config.max_response_bytes}; raise it, and max_response_size of config.properties to "
            "the same value, or turn explanations off"
        )


def _complete_input(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the input settings that follow from others.

    These are values per channel if one value was given for all channels, and the size of the
    resized image before the crop (the crop is the centre's 87.5 %, as for ImageNet).
    """
    channels = values.get("channels", 3)
    completed: dict[str, Any] = {}
    for other, default in (
        ("channels", 3),
        ("channel_order", "rgb"),
        ("pixel_scale", 1),
    ):
        if values.get(other, default) == default:
            continue
        for key in ("mean", "std"):
            if key not in values:
                raise ConfigError(
                    f"handler.{other} is {values[other]} and handler.{key} is missing; give the "
                    "numbers that the model was trained with"
                )
    if channels == 1:
        completed["fill"] = (0,)
    for key in ("mean", "std", "fill"):
        given = values.get(key, (0,))
        if len(given) == 1 and key in values:
            completed[key] = given * channels
        elif len(given) not in (1, channels):
            raise ConfigError(
                f"handler.{key} has {len(given)} numbers and handler.channels is {channels}; "
                "accepted: one number per channel"
            )
    if "resize_size" not in values:
        size = values.get("image_size", 224)
        is_cropped = values.get("resize", "shorter") == "shorter"
        longer = max(both_sides(parse_size(size)))
        completed["resize_size"] = longer * 8 // 7 if is_cropped else size
    return completed


def _check_sizes(config: HandlerConfig) -> None:
    sizes = (
        f"handler.resize_size is {config.resize_size} and handler.image_size "
        f"{config.image_size}"
    )
    resized, cropped = parse_size(config.resize_size), parse_size(config.image_size)
    if config.resize == "letterbox" and resized != cropped:
        raise ConfigError(f"{sizes}; a letterbox has only one size: leave resize_size out")
    if config.resize == "shorter" and not isinstance(resized, int):
        raise ConfigError(f"{sizes}; accepted with resize shorter: one number")
    sides = zip(both_sides(resized), both_sides(cropped))
    if any(side < crop for side, crop in sides):
        raise ConfigError(
            f"{sizes}; the crop would be larger than the resized image: raise resize_size"
        )


def _check_channels(config: HandlerConfig) -> None:
    if (config.channels, config.channel_order) == (1, "bgr"):
        raise ConfigError(
            "handler.channel_order is bgr and handler.channels is 1; one channel has no order"
        )
    for key, unused in (("mean", 0), ("std", 1)):
        values, scale = getattr(config, key), config.pixel_scale
        given = f"handler.{key} is {list(values)} and handler.pixel_scale is {scale}"
        if max(values) > scale:
            raise ConfigError(
                f"{given}; accepted: numbers up to 1, for pixels on 0..1; for numbers on 0..255 "
                "set pixel_scale=255"
            )
        if scale == 255 and max(values) <= 1 and {*values} != {unused}:
            raise ConfigError(
                f"{given}; accepted: numbers on 0..255, or {unused} for every channel; for "
                "numbers on 0..1 leave pixel_scale out"
            )


def _check_precision(engine: str, precision: str) -> None:
    if precision not in PRECISIONS[engine]:
        raise ConfigError(
            f"handler.precision is {precision!r}; handler.engine {engine!r} has "
            f"{', '.join(PRECISIONS[engine])}"
        )
