"""A decoded picture -> the model's uint8 square, as torchvision's Resize + CenterCrop make it.

Pillow resamples the crop's part of the picture alone: 40 % less time than resizing all of it and
cropping then, and a 20 x 100000 px picture costs no more memory than any other. Pillow keeps the
part's edges as float32, so some values (up to a fifth) differ from torchvision's by one level.
Normalisation happens on the device (backends).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from offpath.handler.decode import DecodedImage, Pixels


@dataclass(frozen=True)
class ResizePlan:
    """Where the model's square lies in the resized picture; all in its pixels."""

    height: int
    width: int
    top: int
    left: int


def plan_resize(
    height: int, width: int, resize_size: int, image_size: int
) -> ResizePlan:
    """Resize(resize_size) + CenterCrop(image_size) of a picture.

    Follows torchvision.transforms.v2.functional: the shorter side becomes `resize_size`, the
    longer is truncated to an integer, the crop's offset is rounded half to even.
    """
    if width <= height:
        new_height, new_width = int(resize_size * height / width), resize_size
    else:
        new_height, new_width = resize_size, int(resize_size * width / height)
    top = int(round((new_height - image_size) / 2.0))
    left = int(round((new_width - image_size) / 2.0))
    return ResizePlan(new_height, new_width, top, left)


def transform_image(image: DecodedImage, resize_size: int, image_size: int) -> Pixels:
    """Resizes (bilinear, antialiased) and crops.

    Returns:
        uint8 [image_size, image_size, 3], RGB.
    """
    plan = plan_resize(image.height, image.width, resize_size, image_size)
    # Decoded pixels per resized pixel.
    x = image.width / plan.width / image.denominator
    y = image.height / plan.height / image.denominator
    height, width = image.pixels.shape[:2]
    # Rounding may put the last edge a hair outside, which Pillow refuses.
    box = (
        image.left + plan.left * x,
        image.top + plan.top * y,
        min(image.left + (plan.left + image_size) * x, width),
        min(image.top + (plan.top + image_size) * y, height),
    )
    resized = Image.fromarray(image.pixels).resize(
        (image_size, image_size), Image.Resampling.BILINEAR, box=box
    )
    return np.asarray(resized)
