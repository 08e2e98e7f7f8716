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
        *[15, 2049, 224.0, "224", True, None, [256, 128], "256x", "256x128x3"],
        *["15x224", "224x2049", "224X224", "9" * 5000 + "x224", "224x224\n"],
    ],
    "resize_size": [0, [256]],
    "top_k": [0, False, 1001],
    "mean": [
        *[None, "0.5", "abc", [], [0.5, 0.5], [0.5] * 4, [0.5, 0.5, "0.5"]],
        *[[0.5, 0.5, None], [0.5, 0.5, True], [0.5, 0.5, NAN], [0.5, 0.5, -0.1]],
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


@pytest.mark.parametrize("section", [None, {}], ids=["missing", "empty"])
def test_no_settings_are_the_defaults(section: Any) -> None:
    config = read(section)
    assert (config.image_size, config.resize_size, config.top_k) == (224, 256, 5)
    assert config.prediction_log.is_off


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


@pytest.mark.parametrize("key", ["topk", "Top_k"])
def test_a_mistyped_key_names_the_right_one(key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' in handler; did you mean top_k$"):
        read({key: 1})


@pytest.mark.parametrize("key", ["speed", 1, None, ""])
def test_unknown_key_names_it_and_the_accepted_ones(key: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"unknown key {key!r}")) as caught:
        read({key: 1})
    for field in dataclasses.fields(HandlerConfig):
        assert field.name in str(caught.value)


@pytest.mark.parametrize("section", [[], [1], "scaled", 3, True])
def test_section_that_is_not_a_mapping_is_refused(section: Any) -> None:
    with pytest.raises(ConfigError, match="accepted: a mapping with image_size"):
        read(section)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resize_size": 200}, "is 200 and .* 256x128; the crop"),
        ({"resize_size": "256x256", "resize": "letterbox"}, "has only one size"),
        ({"resize_size": "300x127", "resize": "stretch"}, "the crop would be larger"),
        ({"resize_size": "300x200"}, "accepted with resize shorter: one number"),
    ],
)
def test_both_sides_of_a_rectangle_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read({"image_size": "256x128", **settings})


@pytest.mark.parametrize(("key", "other"), [("mean", "std"), ("std", "mean")])
def test_numbers_on_0_to_255_name_the_setting(key: str, other: str) -> None:
    values = [123.675, 116.28, 103.53]
    with pytest.raises(ConfigError, match="123.675.*accepted.*set pixel_scale=255"):
        read({key: values})
    config = read({"pixel_scale": 255, key: values, other: 57})
    assert getattr(config, key) == tuple(values)


def test_numbers_on_0_to_1_do_not_go_with_pixels_on_0_to_255() -> None:
    small = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    usual = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
    for key in small:
        settings = {"pixel_scale": 255, **usual, key: small[key]}
        said = rf"handler.{key} is \[0.*pixel_scale is 255; accepted: .* leave pixel_"
        with pytest.raises(ConfigError, match=said):
            read(settings)
    # A model of the pixels themselves.
    assert read({"pixel_scale": 255, "mean": 0, "std": 1}).std == (1, 1, 1)


def test_colours_follow_the_channel_order() -> None:
    settings = {"mean": 0.5, "std": 0.5, "fill": [1, 2, 3], "channel_order": "bgr"}
    assert read(settings).input_geometry.fill == (3, 2, 1)
    with pytest.raises(ConfigError, match="one channel has no order"):
        read({"channels": 1, **settings, "fill": 0})


def test_one_number_applies_to_all_channels() -> None:
    config = read({"mean": 0.5, "std": [0.25], "fill": 114})
    assert (config.mean, config.std) == ((0.5,) * 3, (0.25,) * 3)
    assert config.fill == (114,) * 3
    grey = read({"channels": 1, "mean": [0.5], "std": 0.25})
    assert (grey.mean, grey.std, grey.fill) == ((0.5,), (0.25,), (0,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "channels is 1 and handler.mean is missing"),
        ({"mean": 0.5}, "channels is 1 and handler.std is missing"),
        (
            {"channels": 3, "pixel_scale": 255},
            "pixel_scale is 255 and handler.mean is missing",
        ),
        (
            {"channels": 3, "channel_order": "bgr", "mean": 0.5},
            "channel_order is bgr and handler.std is missing",
        ),
        (
            {"mean": [0.5] * 3, "std": 0.5},
            "mean has 3 numbers and handler.channels is 1",
        ),
        ({"mean": 0.5, "std": 0.5, "fill": [1, 2, 3]}, "fill has 3 numbers"),
    ],
)
def test_other_channels_need_their_own_numbers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read({"channels": 1, **settings})
