"""Compares resize policies, interpolations and channels with torchvision."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from offpath.handler.image.decode import DecodedImage
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from tests.support.photographs import PHOTOGRAPHS, find_photograph

# The transforms of TorchServe's image_classifier.
STOCK = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
TALL, WIDE, GREY = (128, 64), (64, 128), 114
Policy = Callable[[Image.Image, InterpolationMode], Image.Image]


def transform(image: Image.Image, geometry: InputGeometry) -> np.ndarray:
    pixels = np.asarray(image.convert("RGB"))
    made = transform_image(DecodedImage(pixels, image.height, image.width), geometry)
    assert (made.dtype, made.shape) == (np.uint8, geometry.shape)
    return made


def check_rounding(made: np.ndarray, expected: np.ndarray, share: float, of: object) -> None:
    """Checks that both are equal but for rounding: one level, in less than a share of values."""
    difference = np.abs(made.astype(int) - expected)
    assert difference.max() <= 1, of
    assert (difference > 0).mean() < share, of


def test_random_sizes_are_transformed_as_by_torchvision() -> None:
    generator = np.random.default_rng(0)
    photograph = find_photograph("motorcycle_left").rgb
    for _ in range(100):
        width, height = (int(side) for side in generator.integers(2, 900, 2))
        image = photograph.resize((width, height), Image.Resampling.NEAREST)
        made = transform(image, InputGeometry())
        check_rounding(made, np.asarray(STOCK(image)), 0.25, image.size)


def stretch_and_crop(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    return v2.Compose([v2.Resize((110, 110), filtered), v2.CenterCrop(96)])(image)


def stretch_to_tall(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    return v2.Resize(TALL, filtered)(image)


def letterbox_to_wide(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    scale = min(Fraction(WIDE[0], image.height), Fraction(WIDE[1], image.width))
    resized = v2.Resize((int(image.height * scale), int(image.width * scale)), filtered)(image)
    left, above = (WIDE[1] - resized.width) // 2, (WIDE[0] - resized.height) // 2
    right, below = WIDE[1] - resized.width - left, WIDE[0] - resized.height - above
    return v2.Pad([left, above, right, below], fill=GREY)(resized)


POLICIES = {
    stretch_and_crop: (96, 110, "stretch"),
    stretch_to_tall: (TALL, TALL, "stretch"),
    letterbox_to_wide: (WIDE, WIDE, "letterbox"),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("policy", POLICIES)
def test_resize_policies_are_torchvisions(
    policy: Policy, interpolation: str, channels: int
) -> None:
    geometry = InputGeometry(*POLICIES[policy], interpolation, channels, (GREY,) * channels)
    for photograph in PHOTOGRAPHS[::3]:
        expected = policy(photograph.rgb, InterpolationMode(interpolation))
        expected = np.asarray(expected.convert("L") if channels == 1 else expected)
        made = transform(photograph.rgb, geometry).reshape(expected.shape)
        if policy is stretch_and_crop:
            check_rounding(made, expected, 0.01, photograph.name)
        else:
            np.testing.assert_array_equal(made, expected, photograph.name)
