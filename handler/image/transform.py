"""A decoded picture -> the model's uint8 square, as torchvision's transforms make it.

Pillow resamples the crop's part of the picture alone: 40 % less time than resizing all of it and
cropping then, and a 20 x 100000 px picture costs no more memory than any other. Pillow keeps the
part's edges as float32, so some values (up to a fifth) differ from torchvision's by one level.
Normalisation happens on the device (backends).
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from offpath.handler.image.decode import DecodedImage, Pixels
from offpath.handler.image.geometry import ResizePlan, Square, plan_resize

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def transform_image(image: DecodedImage, square: Square) -> Pixels:
    """Resizes (antialiased), crops or fills up, and takes the luminance where one channel is asked.

    Returns:
        uint8 [size, size, channels], RGB or luminance.
    """
    plan = plan_resize(image.height, image.width, square)
    # Decoded pixels per resized pixel.
    x = image.width / plan.width / image.denominator
    y = image.height / plan.height / image.denominator
    height, width = image.pixels.shape[:2]
    # Rounding may put the last edge a hair outside, which Pillow refuses.
    box = (
        image.left + plan.left * x,
        image.top + plan.top * y,
        min(image.left + (plan.left + plan.columns) * x, width),
        min(image.top + (plan.top + plan.rows) * y, height),
    )
    resized = Image.fromarray(image.pixels).resize(
        (plan.columns, plan.rows), FILTERS[square.interpolation], box=box
    )
    return finish_square(np.asarray(resized), plan, square)


def finish_square(part: Pixels, plan: ResizePlan, square: Square) -> Pixels:
    """The part of the resized picture that was wanted, RGB -> the square."""
    if part.shape[:2] != (square.size, square.size):
        filled = np.empty((square.size, square.size, 3), np.uint8)
        filled[:] = square.fill
        rows = slice(plan.above, plan.above + plan.rows)
        filled[rows, plan.before : plan.before + plan.columns] = part
        part = filled
    if square.channels == 1:
        return np.asarray(Image.fromarray(part).convert("L"))[:, :, None]
    return part
