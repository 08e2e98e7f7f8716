"""The model's input square: its size, and how a picture of any shape is fitted into it. Pixels.

The geometry follows torchvision.transforms.v2.functional, its rounding included.
"""

from __future__ import annotations

from dataclasses import dataclass

RESIZES = ("shorter", "stretch", "letterbox")
# How many pixels away, in pixels of the coarser grid, a filter still reads.
FILTER_REACH = {"bilinear": 1, "bicubic": 2}
INTERPOLATIONS = tuple(FILTER_REACH)
CHANNELS = (1, 3)


@dataclass(frozen=True)
class Square:
    """What a picture becomes.

    Attributes:
        size: side of the square.
        resize_size: of the resized picture, before the crop: its shorter side with `shorter`, both
            with `stretch`, its longer with `letterbox` (and then equal to `size`).
        resize: `shorter`: Resize(resize_size) + CenterCrop(size); `stretch`: the same of
            Resize((resize_size, resize_size)); `letterbox`: Resize(None, max_size=size), in the
            middle of a square of the colour `fill`.
        interpolation: `bilinear` or `bicubic`, both antialiased.
        channels: 3 for RGB, 1 for luminance as Pillow's "L".
        fill: one value a channel, 0 to 255.
    """

    size: int = 224
    resize_size: int = 256
    resize: str = "shorter"
    interpolation: str = "bilinear"
    channels: int = 3
    fill: tuple[int, ...] = (0, 0, 0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the pixels: height, width, channels."""
        return self.size, self.size, self.channels


@dataclass(frozen=True)
class ResizePlan:
    """Where the model's square and the resized picture lie on each other.

    Attributes:
        height, width: of the whole resized picture.
        top, left: of its part that is in the square, in its own pixels.
        rows, columns: of that part; less than the square's side where it is filled up.
        above, before: pixels of the square above and before that part.
    """

    height: int
    width: int
    top: int
    left: int
    rows: int
    columns: int
    above: int = 0
    before: int = 0


def plan_resize(height: int, width: int, square: Square) -> ResizePlan:
    """How a picture of this size is fitted."""
    size, resized = square.size, square.resize_size
    if square.resize == "letterbox":
        rows, columns = size, size
        # The longer side becomes the square's, the other is truncated to an integer.
        if width <= height:
            columns = max(1, int(size * width / height))
        else:
            rows = max(1, int(size * height / width))
        above, before = (size - rows) // 2, (size - columns) // 2
        return ResizePlan(rows, columns, 0, 0, rows, columns, above, before)
    if square.resize == "stretch":
        new_height, new_width = resized, resized
    elif width <= height:
        # The shorter side becomes `resize_size`, the longer is truncated to an integer.
        new_height, new_width = int(resized * height / width), resized
    else:
        new_height, new_width = resized, int(resized * width / height)
    # The crop's offset is rounded half to even.
    top = int(round((new_height - size) / 2.0))
    left = int(round((new_width - size) / 2.0))
    return ResizePlan(new_height, new_width, top, left, size, size)
