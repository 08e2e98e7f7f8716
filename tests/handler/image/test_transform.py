"""Compares resize policies, interpolations and channels with torchvision."""

from __future__ import annotations

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
TALL, WIDE = (128, 64), (64, 128)


def transform(image: Image.Image, geometry: InputGeometry) -> np.ndarray:
    pixels = np.asarray(image.convert("RGB"))
    made = transform_image(DecodedImage(pixels, image.height, image.width), geometry)
    assert (made.dtype, made.shape) == (np.uint8, geometry.shape)
    return made.astype(int)


def test_random_sizes_are_transformed_as_by_torchvision() -> None:
    generator = np.random.default_rng(0)
    photograph = find_photograph("motorcycle_left").rgb
    for _ in range(100):
        width, height = (int(side) for side in generator.integers(2, 900, 2))
        image = photograph.resize((width, height), Image.Resampling.NEAREST)
        # Equal but for rounding: one level, in one value of four at most.
        difference = np.abs(transform(image, InputGeometry()) - np.asarray(STOCK(image)))
        assert difference.max() <= 1, image.size
        assert (difference > 0).mean() < 0.25, image.size


def resize_by_torchvision(image: Image.Image, policy: str, filtered: object) -> Image.Image:
    steps = {
        "stretch and crop": [v2.Resize((110, 110), filtered), v2.CenterCrop(96)],
        "tall stretch": [v2.Resize(TALL, filtered)],
        # CenterCrop fills up with black.
        "wide letterbox": [v2.Resize(fit(image, WIDE), filtered), v2.CenterCrop(WIDE)],
    }
    return v2.Compose(steps[policy])(image)


def fit(image: Image.Image, size: tuple[int, int]) -> tuple[int, int]:
    scale = min(Fraction(size[0], image.height), Fraction(size[1], image.width))
    return int(image.height * scale), int(image.width * scale)


POLICIES = {
    "stretch and crop": (96, 110, "stretch"),
    "tall stretch": (TALL, TALL, "stretch"),
    "wide letterbox": (WIDE, WIDE, "letterbox"),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("policy", POLICIES)
def test_resize_policies_are_torchvisions(policy: str, interpolation: str, channels: int) -> None:
    geometry = InputGeometry(*POLICIES[policy], interpolation, channels, (0,) * channels)
    filtered = InterpolationMode(interpolation)
    for photograph in PHOTOGRAPHS:
        expected = resize_by_torchvision(photograph.rgb, policy, filtered)
        expected = np.asarray(expected.convert("L") if channels == 1 else expected)
        made = transform(photograph.rgb, geometry)
        difference = np.abs(made.reshape(expected.shape) - expected)
        print(photograph.name, difference.max(), difference.mean())
        assert difference.mean() <= 0.3, photograph.name
