from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError

NAN, INF = math.nan, math.inf
WRONG: dict[str, list[Any]] = {
    "image_size": [
        *[15, 2049, 224.0, True, [256, 128], "256x128x3", "15x224", "9" * 5000 + "x224"],
    ],
    "resize_size": [0, [256]],
    "top_k": [0, False, 1001],
    "mean": [
        *["0.5", [], [0.5, 0.5], [0.5, 0.5, None], [0.5, 0.5, NAN], [0.5, 0.5, -0.1]],
        *[[123.7, 116.3, 103.5], {"r": 1, "g": 1, "b": 1}],
    ],
    "std": [[0.2, 0.2, 0], [0.2, 0.2, INF], [0.2, 0.2, NAN], [[0.2], 0.2, 0.2]],
    "channels": [2, True, "3"],
    "channel_order": ["rbg", 3, None],
    "pixel_scale": [True, 2, 1.0, "255"],
    "resize": ["crop"],
    "interpolation": ["nearest"],
    "fill": [256, [0, 0], 0.5],
    "decode": ["fast", None, ["scaled"]],
    "scale_margin": [0.9, NAN, INF, True],
    "exif_orientation": [1, "true", None],
    "max_pixels": [0, 10**9, 5e7],
    "max_payload_bytes": [-1, 2**31],
    "threads": [-1, True],
    "server_timing": [0],
    "metrics_interval_s": [0, NAN, "1"],
}


def read(mapping: Any, **environ: str) -> HandlerConfig:
    return HandlerConfig.from_mapping(mapping, environ=environ)


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in WRONG.items() for value in values],
)
def test_wrong_value_names_key_value_and_what_is_accepted(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read({key: value})
    message = str(caught.value)
    assert f"handler.{key} is " in message
    assert "accepted: " in message
    if not isinstance(value, dict):
        assert repr(value).strip("[]") in message.replace("(", "[").replace(")", "]")


@pytest.mark.parametrize("key", ["speed", 1, None, ""])
def test_unknown_key_names_it_and_the_accepted_ones(key: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"unknown key {key!r}")) as caught:
        read({key: 1})
    for field in dataclasses.fields(HandlerConfig):
        assert field.name in str(caught.value)


def test_crop_larger_than_the_resized_image_is_refused() -> None:
    for resize in ("shorter", "stretch"):
        with pytest.raises(ConfigError, match="is 256 and .*image_size 288; the crop"):
            read({"image_size": 288, "resize_size": 256, "resize": resize})
    assert read({"image_size": 288, "resize_size": 288}).image_size == 288


@pytest.mark.parametrize(
    ("settings", "resize_size"),
    [
        ({"image_size": 336}, 384),
        ({"image_size": 32}, 36),
        ({"image_size": 1024}, 1170),
        ({"image_size": 300, "resize": "stretch"}, 300),
        ({"image_size": 300, "resize": "letterbox"}, 300),
        ({"image_size": "280x140"}, 320),
        ({"image_size": "280x140", "resize": "stretch"}, "280x140"),
        ({"image_size": "280x140", "resize": "letterbox"}, "280x140"),
        ({"resize": "stretch", "resize_size": 256}, 256),
    ],
)
def test_resize_follows_from_the_models_size(
    settings: dict[str, Any], resize_size: int | str
) -> None:
    assert read(settings).resize_size == resize_size


@pytest.mark.parametrize(("key", "other"), [("mean", "std"), ("std", "mean")])
def test_numbers_on_0_to_255_name_the_setting(key: str, other: str) -> None:
    values = [123.675, 116.28, 103.53]
    with pytest.raises(ConfigError, match="123.675.*accepted.*set pixel_scale=255"):
        read({key: values})
    config = read({"pixel_scale": 255, key: values, other: 57})
    assert getattr(config, key) == tuple(values)
