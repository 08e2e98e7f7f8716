"""The `handler:` section of model-config.yaml as one frozen dataclass, checked once at load.

Precedence: a field's default < model-config.yaml < the prediction log's environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offpath.handler.backends import ENGINES, PRECISIONS
from offpath.handler.decode import SCALE_MARGIN, DecodeOptions
from offpath.handler.errors import ConfigError
from offpath.handler.prediction_log.settings import PredictionLogSettings
from offpath.handler.settings import (
    choice,
    flag,
    integer,
    mapping,
    number,
    optional,
    positive,
    read_section,
    setting,
    three,
)

SECTION = "handler"
DECODE_MODES = ("scaled", "exact", "nvjpeg")
# head.py applies them; `auto` is decided when the archive is built (archive/head.py).
ACTIVATIONS = ("softmax", "sigmoid", "none", "auto")
# `auto`: backends/choose.py says what it stands for.
ENGINE_NAMES = ("auto", *ENGINES)
PRECISION_NAMES = ("auto", *sorted({p for ps in PRECISIONS.values() for p in ps}))
# Pillow refuses more, whatever we allow (twice PIL.Image.MAX_IMAGE_PIXELS).
MOST_PIXELS = 178_956_970
# A float32 as JSON writes it, with its comma.
EXPLANATION_NUMBER_BYTES = 25


@dataclass(frozen=True)
class HandlerConfig:
    """Everything the request path may be told; lengths in pixels, sizes in bytes."""

    image_size: int = setting(224, integer(16, 2048))
    resize_size: int = setting(256, integer(16, 4096))
    mean: tuple[float, float, float] = setting(
        (0.485, 0.456, 0.406), three("three numbers from 0 to 1", number(0, 1))
    )
    std: tuple[float, float, float] = setting(
        (0.229, 0.224, 0.225), three("three numbers above 0, up to 1", positive(1))
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
        values = read_section(cls, mapping, SECTION)
        values["prediction_log"] = PredictionLogSettings.from_mapping(
            values.get("prediction_log"),
            os.environ if environ is None else environ,
            f"{SECTION}.prediction_log",
        )
        config = cls(**values)
        if config.resize_size < config.image_size:
            raise ConfigError(
                f"handler.resize_size {config.resize_size} is below handler.image_size "
                f"{config.image_size}: the crop would leave the picture"
            )
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
    most = 3 * config.image_size**2 * EXPLANATION_NUMBER_BYTES
    if most > config.max_response_bytes:
        raise ConfigError(
            f"handler.explanations: a reply for handler.image_size {config.image_size} takes up to "
            f"{most} bytes, over handler.max_response_bytes {config.max_response_bytes}; raise it, "
            "and max_response_size of config.properties to the same, or leave explanations off"
        )


def _check_precision(engine: str, precision: str) -> None:
    if precision not in PRECISIONS[engine]:
        raise ConfigError(
            f"handler.precision is {precision!r}; handler.engine {engine!r} has "
            f"{', '.join(PRECISIONS[engine])}"
        )
