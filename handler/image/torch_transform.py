"""Resizes JPEGs by torch's SIMD resampler, which takes a third to 60 % of Pillow's time.

Single values differ from Pillow's by one level, far less than JPEG's own loss. Other formats, whose
decoding takes longer than either resize, and `decode: exact` keep Pillow's (transform.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from offpath.handler.image.decode import DecodedImage, Pixels
from offpath.handler.image.geometry import (
    FILTER_REACH,
    InputGeometry,
    ResizePlan,
    plan_resize,
)
from offpath.handler.image.transform import finish_input, transform_image

# torch resizes from the first pixel of its input. The image is therefore cut before the crop, at
# a place where the edge of a resized pixel meets the edge of a decoded pixel. This is the largest
# distance from the cut to the crop, in resized pixels: each costs a row and a column of work.
REACH_PX = 24
# Largest distance between the two edges, in decoded pixels: 0.05 moved a noisy image by 5 levels.
MAX_SHIFT_PX = 0.01
# Without such a cut torch begins at the image's edge, up to this distance; beyond it Pillow
# resizes.
MAX_LEAD_PX = 256
# Weights of red, green and blue in Pillow's "L" (ITU-R 601-2 in 16 bits).
LUMINANCE = (19595 / 65536, 38470 / 65536, 7471 / 65536)


@dataclass(frozen=True)
class ImagePart:
    """The part of a decoded image that is resized, and where the model's input lies in it.

    Attributes:
        rows, columns: the decoded pixels to resize.
        factors: resized pixels per decoded pixel, down and across.
        top, left: where the model's input begins, in resized pixels of the part.
        plan: plan for the whole image.
    """

    rows: slice
    columns: slice
    factors: tuple[float, float]
    top: int
    left: int
    plan: ResizePlan


def transform_with_torch(image: DecodedImage, geometry: InputGeometry) -> Pixels:
    """Does the same as `transform_image`, by torch where that is possible.

    Returns:
        uint8 [height, width, channels]; rows are not contiguous.
    """
    part = None
    begins_inside = image.top > 0 or image.left > 0  # torch cannot express this
    if image.is_jpeg and not begins_inside:
        part = find_part(image.height, image.width, image.denominator, geometry)
    if part is None:
        return transform_image(image, geometry)
    # The copy is contiguous for the vectorised path, and writable so that torch does not warn. The
    # batch dimension is added before the permutation: otherwise torch does not recognise channels
    # last and returns planes, which take 0.3 ms to copy into the batch.
    pixels = np.array(image.pixels[part.rows, part.columns])
    planes = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
    resized: Pixels = _resize(planes, part, geometry)[0].numpy()
    return finish_input(resized, part.plan, geometry)


def transform_on_device(
    images: Sequence[torch.Tensor], geometry: InputGeometry
) -> Sequence[torch.Tensor | None]:
    """Does the same for JPEGs of one size that were decoded in full on a device.

    Args:
        images: uint8 [3, height, width] each, RGB.

    Returns:
        uint8 [height, width, channels] each, on the same device; None for images so long that
        most of the resized pixels would be thrown away.
    """
    height, width = images[0].shape[1:]
    part = find_part(height, width, 1, geometry)
    if part is None:
        return [None] * len(images)
    # CUDA's resampler takes no integers.
    cut = torch.stack([one[:, part.rows, part.columns] for one in images])
    resized = _resize(cut.float(), part, geometry).round_().clamp_(0, 255)
    return [*_finish_on_device(resized, part.plan, geometry).to(torch.uint8)]


def _finish_on_device(
    resized: torch.Tensor, plan: ResizePlan, geometry: InputGeometry
) -> torch.Tensor:
    """Does the same as `finish_input`, in float."""
    height, width, channels = geometry.shape
    if resized.shape[1:3] != (height, width):
        filled = resized.new_empty((len(resized), height, width, 3))
        filled[:] = resized.new_tensor(geometry.fill)
        rows = slice(plan.above, plan.above + plan.rows)
        filled[:, rows, plan.before : plan.before + plan.columns] = resized
        resized = filled
    if channels == 1:
        weights = resized.new_tensor(LUMINANCE)
        return (resized * weights).sum(3, keepdim=True).round_()
    return resized


def _resize(images: torch.Tensor, part: ImagePart, geometry: InputGeometry) -> torch.Tensor:
    """Resizes the part, [n, 3, height, width], and returns the plan's [n, rows, columns, 3]."""
    resized = torch.nn.functional.interpolate(
        images,
        scale_factor=part.factors,
        mode=geometry.interpolation,
        antialias=True,
        recompute_scale_factor=False,
    )
    rows = slice(part.top, part.top + part.plan.rows)
    columns = slice(part.left, part.left + part.plan.columns)
    return resized[:, :, rows, columns].permute(0, 2, 3, 1)


# Photographs come in few sizes, and the search takes 20 microseconds.
@lru_cache(maxsize=1024)
def find_part(
    height: int, width: int, denominator: int, geometry: InputGeometry
) -> ImagePart | None:
    """Finds the part to resize of an image of this full size, decoded at 1/denominator.

    Returns:
        None if torch would have to begin too far from the crop.
    """
    plan = plan_resize(height, width, geometry)
    reach = FILTER_REACH[geometry.interpolation]
    # Decoded pixels per resized pixel, by the full size: 683 decoded rows may stand for 1365.
    y, x = height / plan.height / denominator, width / plan.width / denominator
    row, column = find_cut(plan.top, y, reach), find_cut(plan.left, x, reach)
    if row is None or column is None:
        return None
    return ImagePart(
        rows=_span(row, y, plan.top + plan.rows, reach),
        columns=_span(column, x, plan.left + plan.columns, reach),
        # Slightly more, because 333 * (256 / 333) may be just under 256 and lose the last row.
        factors=((1 + 1e-9) / y, (1 + 1e-9) / x),
        top=plan.top - row,
        left=plan.left - column,
        plan=plan,
    )


def find_cut(first: int, step: float, reach: int = 1) -> int | None:
    """Finds the resized pixel to begin at, so that `first` and all after it are correct.

    Args:
        first: the first resized pixel that is needed.
        step: decoded pixels per resized pixel.
        reach: distance at which the filter still reads.

    Returns:
        The pixel within REACH_PX whose edge lies nearest to an edge of the decoded pixels; 0, the
        image's edge, if none lies near enough; None if that edge is too far away.
    """
    if first <= REACH_PX:
        return 0
    # The filter reaches over the cut for the first pixels after it (more of them when enlarging).
    margin = 1 + math.ceil(reach * max(1.0, 1.0 / step))
    candidates = range(first - margin, first - REACH_PX - 1, -1)
    # Rounded, so that among equal candidates the nearest to the crop is taken.
    best = min(candidates, key=lambda pixel: round(_shift(pixel, step), 3), default=None)
    if best is not None and _shift(best, step) <= MAX_SHIFT_PX:
        return best
    return 0 if first <= MAX_LEAD_PX else None


def _shift(pixel: int, step: float) -> float:
    return abs(pixel * step - round(pixel * step))


def _span(start: int, step: float, end: int, reach: int) -> slice:
    """Returns the decoded pixels under the resized pixels `start` to `end`, plus the reach."""
    after = math.ceil(end * step + reach * max(step, 1.0)) + 1
    return slice(round(start * step), after)
