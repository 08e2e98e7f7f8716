"""The transform of JPEGs by torch's SIMD resampler, a third to 60 % of the time of Pillow's.

It differs from Pillow's by one level here and there, far less than JPEG itself. Other formats,
whose decoding takes longer than either, and `decode=exact` keep Pillow's (transform.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from offpath.handler.image.decode import DecodedImage, Pixels
from offpath.handler.image.geometry import FILTER_REACH, ResizePlan, Square, plan_resize
from offpath.handler.image.transform import finish_square, transform_image

# torch resizes from the first pixel of what it gets, so the picture is cut before the crop where a
# resized pixel's edge meets a decoded pixel's. At most so many resized pixels before the crop: each
# costs a row and a column of work.
REACH_PX = 24
# How far the two edges may lie apart, in decoded pixels: 0.05 moved a noisy picture by 5 levels.
MAX_SHIFT_PX = 0.01
# Without such a cut torch begins at the picture's edge; Pillow does it where the way is longer.
MAX_LEAD_PX = 256
# Of red, green and blue in Pillow's "L" (ITU-R 601-2 in 16 bits).
LUMINANCE = (19595 / 65536, 38470 / 65536, 7471 / 65536)


@dataclass(frozen=True)
class Part:
    """What of a decoded picture is resized, and where the model's square then lies in it.

    Attributes:
        rows, columns: of decoded pixels.
        factors: resized pixels per decoded pixel, down and across.
        top, left: of the square, in resized pixels of the part.
        plan: of the whole picture.
    """

    rows: slice
    columns: slice
    factors: tuple[float, float]
    top: int
    left: int
    plan: ResizePlan


def transform_with_torch(image: DecodedImage, square: Square) -> Pixels:
    """The same as `transform_image`.

    Returns:
        uint8 [size, size, channels]; rows are not contiguous.
    """
    part = None
    begins_inside = image.top > 0 or image.left > 0  # which torch cannot express
    if image.is_jpeg and not begins_inside:
        part = find_part(image.height, image.width, image.denominator, square)
    if part is None:
        return transform_image(image, square)
    # A copy: contiguous for the vectorised path, and writable, without which torch warns. The batch
    # dimension comes before the permutation: else torch does not see channels last, and answers in
    # planes, which takes 0.3 ms to stage.
    pixels = np.array(image.pixels[part.rows, part.columns])
    picture = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
    resized: Pixels = _resize(picture, part, square).numpy()
    return finish_square(resized, part.plan, square)


def transform_on_device(picture: torch.Tensor, square: Square) -> torch.Tensor | None:
    """The same for a JPEG that was decoded in full on a device.

    Args:
        picture: uint8 [3, height, width], RGB.

    Returns:
        uint8 [size, size, channels] on the same device; None for a picture so long that
        most of it would have to be resized for nothing.
    """
    height, width = picture.shape[1:]
    part = find_part(height, width, 1, square)
    if part is None:
        return None
    # CUDA's resampler takes no integers.
    cut = picture[:, part.rows, part.columns].unsqueeze(0).float()
    resized = _resize(cut, part, square).round_().clamp_(0, 255)
    return _finish_on_device(resized, part.plan, square).to(torch.uint8)


def _finish_on_device(
    resized: torch.Tensor, plan: ResizePlan, square: Square
) -> torch.Tensor:
    """As transform.py's `finish_square`, in float."""
    if resized.shape[:2] != (square.size, square.size):
        filled = resized.new_empty((square.size, square.size, 3))
        filled[:] = resized.new_tensor(square.fill)
        rows = slice(plan.above, plan.above + plan.rows)
        filled[rows, plan.before : plan.before + plan.columns] = resized
        resized = filled
    if square.channels == 1:
        weights = resized.new_tensor(LUMINANCE)
        return (resized * weights).sum(2, keepdim=True).round_()
    return resized


def _resize(picture: torch.Tensor, part: Part, square: Square) -> torch.Tensor:
    """[1, 3, height, width] of the part -> [rows, columns, 3] of the plan."""
    resized = torch.nn.functional.interpolate(
        picture,
        scale_factor=part.factors,
        mode=square.interpolation,
        antialias=True,
        recompute_scale_factor=False,
    )
    rows = slice(part.top, part.top + part.plan.rows)
    columns = slice(part.left, part.left + part.plan.columns)
    return resized[0, :, rows, columns].permute(1, 2, 0)


# Photographs come in few sizes, and the search takes 20 microseconds.
@lru_cache(maxsize=1024)
def find_part(height: int, width: int, denominator: int, square: Square) -> Part | None:
    """The part to resize of a picture of this full size, decoded at 1/denominator.

    Returns:
        None where torch would have to begin too far from the crop.
    """
    plan = plan_resize(height, width, square)
    reach = FILTER_REACH[square.interpolation]
    # Decoded pixels per resized pixel, by the full size: 683 decoded rows may stand for 1365.
    y, x = height / plan.height / denominator, width / plan.width / denominator
    row, column = find_cut(plan.top, y, reach), find_cut(plan.left, x, reach)
    if row is None or column is None:
        return None
    return Part(
        rows=_span(row, y, plan.top + plan.rows, reach),
        columns=_span(column, x, plan.left + plan.columns, reach),
        # A hair more: 333 * (256 / 333) may come out just under 256 and lose the last row.
        factors=((1 + 1e-9) / y, (1 + 1e-9) / x),
        top=plan.top - row,
        left=plan.left - column,
        plan=plan,
    )


def find_cut(first: int, step: float, reach: int = 1) -> int | None:
    """The resized pixel to begin at, so that `first` and all after it come out right.

    Args:
        first: the first resized pixel that is wanted.
        step: decoded pixels per resized pixel.
        reach: of the filter.

    Returns:
        The pixel within reach whose edge lies nearest to an edge of the decoded pixels; 0, the
        picture's edge, where none lies near enough; None where that is too far away.
    """
    if first <= REACH_PX:
        return 0
    # The filter reaches over the cut for the first pixels after it (more when enlarging).
    margin = 1 + math.ceil(reach * max(1.0, 1.0 / step))
    candidates = range(first - margin, first - REACH_PX - 1, -1)
    # Rounded, so that of equal ones the nearest to the crop is taken.
    best = min(
        candidates, key=lambda pixel: round(_shift(pixel, step), 3), default=None
    )
    if best is not None and _shift(best, step) <= MAX_SHIFT_PX:
        return best
    return 0 if first <= MAX_LEAD_PX else None


def _shift(pixel: int, step: float) -> float:
    return abs(pixel * step - round(pixel * step))


def _span(start: int, step: float, end: int, reach: int) -> slice:
    """Decoded pixels under the resized pixels `start` to `end`, with the filter's reach after."""
    after = math.ceil(end * step + reach * max(step, 1.0)) + 1
    return slice(round(start * step), after)
