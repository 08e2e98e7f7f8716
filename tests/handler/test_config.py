from __future__ import annotations

import math
from typing import Any

import pytest

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError

NAN = math.nan


def read(mapping: Any, **environ: str) -> HandlerConfig:
    return HandlerConfig.from_mapping(mapping, environ=environ)


# One or two values for each kind of setting.
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_size", "15x224"),
        ("image_size", "9" * 5000 + "x224"),
        ("top_k", 1001),
        ("mean", [0.5, 0.5]),
        ("mean", [0.5, 0.5, NAN]),
        ("std", [0.2, 0.2, 0]),
        ("channels", "3"),
        ("resize", "crop"),
        ("scale_margin", NAN),
        ("max_payload_bytes", 2**31),
    ],
)
def test_wrong_value_names_key_value_and_what_is_accepted(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read({key: value})
    message = str(caught.value)
    assert message.startswith(f"handler.{key} is {value!r}; accepted: ")


def test_crop_larger_than_the_resized_image_is_refused() -> None:
    for resize in ("shorter", "stretch"):
        with pytest.raises(ConfigError, match="is 256 and .*image_size 288; the crop"):
            read({"image_size": 288, "resize_size": 256, "resize": resize})
    assert read({"image_size": 288, "resize_size": 288}).image_size == 288


@pytest.mark.parametrize(
    ("settings", "resize_size"),
    [
        ({"image_size": 32}, 36),
        ({"image_size": 300, "resize": "stretch"}, 300),
        ({"image_size": 300, "resize": "letterbox"}, 300),
        ({"image_size": "280x140"}, 320),
        ({"image_size": "280x140", "resize": "stretch"}, "280x140"),
        ({"image_size": "280x140", "resize": "letterbox"}, "280x140"),
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
