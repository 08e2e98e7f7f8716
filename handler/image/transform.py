"""Resizes a decoded image to the model's uint8 input by Pillow, like torchvision's transforms.

Pillow resamples only the part of the image that the crop needs. That takes 40 % less time than
resizing everything and then cropping, and an image of 20 x 100000 pixels needs no more memory than
any other. Pillow keeps the edges of the part as float32, so some values (up to a fifth) differ from
torchvision's by one level. Normalisation happens on the device (handler/model/normalise.py).
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from offpath.handler.image.decode import DecodedImage, Pixels
from offpath.handler.image.geometry import InputGeometry, ResizePlan, plan_resize

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def transform_image(image: DecodedImage, geometry: InputGeometry) -> Pixels:
    """Resizes with antialiasing, crops or pads, and takes the luminance for one channel.

    Returns:
        uint8 [height, width, channels], RGB or luminance.
    """
    plan = plan_resize(image.height, image.width, geometry)
    # Decoded pixels per resized pixel.
    x = image.width / plan.width / image.denominator
    y = image.height / plan.height / image.denominator
    height, width = image.pixels.shape[:2]
    # Rounding may put the last edge slightly outside, and Pillow would refuse that.
    box = (
        image.left + plan.left * x,
        image.top + plan.top * y,
        min(image.left + (plan.left + plan.columns) * x, width),
        min(image.top + (plan.top + plan.rows) * y, height),
    )
    resized = Image.fromarray(image.pixels).resize(
        (plan.columns, plan.rows), FILTERS[geometry.interpolation], box=box
    )
    return finish_input(np.asarray(resized), plan, geometry)


def finish_input(part: Pixels, plan: ResizePlan, geometry: InputGeometry) -> Pixels:
    """Pads the resized part (RGB) to the model's input and converts it to its channels."""
    height, width, channels = geometry.shape
    if part.shape[:2] != (height, width):
        filled = np.empty((height, width, 3), np.uint8)
        filled[:] = geometry.fill
        rows = slice(plan.above, plan.above + plan.rows)
        filled[rows, plan.before : plan.before + plan.columns] = part
        part = filled
    if channels == 1:
        return np.asarray(Image.fromarray(part).convert("L"))[:, :, None]
    return part
