"""The transform of large pictures, by torch's SIMD resampler: half the time of Pillow's.

Only for DCT-scaled decodes, which differ from the full picture anyway: it rounds otherwise than
Pillow by up to one level.
"""

from __future__ import annotations

import numpy as np
import torch

from handler.decode import DecodedImage, Pixels
from handler.transform import plan_resize, transform_image

# torch resizes all of the picture before the crop; beyond this shape that is more than Pillow's
# part of it, and without a bound a 20 x 100000 px picture would take gigabytes.
MAX_ASPECT_RATIO = 3.0


def transform_scaled(image: DecodedImage, resize_size: int, image_size: int) -> Pixels:
    """Resizes (bilinear, antialiased) and crops; the same geometry as `transform_image`.

    Returns:
        uint8 [image_size, image_size, 3], RGB.
    """
    longer, shorter = max(image.height, image.width), min(image.height, image.width)
    begins_inside = image.top > 0 or image.left > 0  # which torch cannot express
    if image.denominator == 1 or begins_inside or longer > MAX_ASPECT_RATIO * shorter:
        return transform_image(image, resize_size, image_size)
    plan = plan_resize(image.height, image.width, resize_size, image_size)
    picture = torch.from_numpy(image.pixels).permute(2, 0, 1).unsqueeze(0)
    # Factors, not sizes: 683 decoded rows stand for 1365, and 256 / 683 would shift the picture.
    factors = (
        plan.height * image.denominator / image.height,
        plan.width * image.denominator / image.width,
    )
    resized = torch.nn.functional.interpolate(
        picture,
        scale_factor=factors,
        mode="bilinear",
        antialias=True,
        recompute_scale_factor=False,
    )
    rows = slice(plan.top, plan.top + image_size)
    columns = slice(plan.left, plan.left + image_size)
    square: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = (
        resized[0, :, rows, columns].permute(1, 2, 0).numpy()
    )
    return square
