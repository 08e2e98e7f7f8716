"""A decoded picture -> the model's uint8 square, as torchvision's Resize + CenterCrop make it.

Pillow resamples the crop's part of the picture alone: the same weights as resizing all of it and
cropping then, less work, and a 20 x 100000 px picture costs no more memory than any other.
Normalisation happens on the device (engine.py).
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from handler.decode import DecodedImage, Pixels


def crop_box(
    height: int, width: int, resize_size: int, image_size: int
) -> tuple[float, float, float, float]:
    """The part of the picture that Resize(resize_size) + CenterCrop(image_size) keeps.

    Follows torchvision.transforms.v2.functional: the shorter side becomes `resize_size`, the
    longer is truncated to an integer, the crop's offset is rounded half to even.

    Returns:
        left, top, right, bottom in the picture's pixels (fractions allowed).
    """
    if width <= height:
        new_width, new_height = resize_size, int(resize_size * height / width)
    else:
        new_width, new_height = int(resize_size * width / height), resize_size
    left = int(round((new_width - image_size) / 2.0))
    top = int(round((new_height - image_size) / 2.0))
    x_scale, y_scale = width / new_width, height / new_height
    return (
        left * x_scale,
        top * y_scale,
        (left + image_size) * x_scale,
        (top + image_size) * y_scale,
    )


def transform_image(image: DecodedImage, resize_size: int, image_size: int) -> Pixels:
    """Resizes (bilinear, antialiased) and crops.

    Returns:
        uint8 [image_size, image_size, 3], RGB.
    """
    left, top, right, bottom = crop_box(
        image.height, image.width, resize_size, image_size
    )
    height, width = image.pixels.shape[:2]
    # A scaled decode is a smaller picture of the same scene.
    x, y = width / image.width, height / image.height
    box = (left * x, top * y, min(right * x, width), min(bottom * y, height))
    resized = Image.fromarray(image.pixels).resize(
        (image_size, image_size), Image.Resampling.BILINEAR, box=box
    )
    return np.asarray(resized)
