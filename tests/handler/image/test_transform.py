from __future__ import annotations

import numpy as np
from PIL import Image
from torchvision.transforms import v2

from offpath.handler.image.decode import DecodedImage, Pixels
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from tests.support.photographs import find_photograph


def decoded(image: Image.Image) -> DecodedImage:
    return DecodedImage(np.asarray(image.convert("RGB")), image.height, image.width)


def assert_as_torchvision(
    image: Image.Image, resize_size: int = 256, image_size: int = 224
) -> None:
    """Equal but for rounding: one level, in one value of four at most."""
    made = transform_image(decoded(image), InputGeometry(image_size, resize_size))
    assert (made.dtype, made.shape) == (np.uint8, (image_size, image_size, 3))
    difference = np.abs(made.astype(int) - stock(image, resize_size, image_size))
    assert difference.max() <= 1, image.size
    assert (difference > 0).mean() < 0.25, image.size


def stock(image: Image.Image, resize_size: int, image_size: int) -> Pixels:
    """torchvision's transforms on a Pillow image, as in the stock image_classifier."""
    resize = v2.Compose([v2.Resize(resize_size), v2.CenterCrop(image_size)])
    return np.asarray(resize(image.convert("RGB")))


def test_random_sizes_are_transformed_as_by_torchvision() -> None:
    generator = np.random.default_rng(0)
    photograph = find_photograph("motorcycle_left").rgb
    for _ in range(150):
        width, height = (int(side) for side in generator.integers(2, 900, 2))
        assert_as_torchvision(photograph.resize((width, height), Image.Resampling.NEAREST))
