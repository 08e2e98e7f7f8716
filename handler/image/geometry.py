"""The geometry of the model's input: its size, and how an image of any shape is fitted into it.

All lengths are in pixels. The arithmetic follows torchvision.transforms.v2.functional, including
its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

RESIZES = ("shorter", "stretch", "letterbox")
# Distance at which a filter still reads pixels, in pixels of the coarser grid.
FILTER_REACH = {"bilinear": 1, "bicubic": 2}
INTERPOLATIONS = tuple(FILTER_REACH)
CHANNELS = (1, 3)
# One number for both sides, or (height, width).
Size = int | tuple[int, int]


def parse_size(size: int | str) -> Size:
    """Reads a checked setting: one number, or a text such as "256x128"."""
    if isinstance(size, int):
        return size
    height, width = map(int, size.split("x"))
    return height if height == width else (height, width)


def format_size(height: int, width: int) -> int | str:
    """Writes a size as a setting, which `parse_size` reads."""
    return height if height == width else f"{height}x{width}"


def both_sides(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True)
class InputGeometry:
    """Size and layout of the model's input.

    Attributes:
        size: of the input.
        resize_size: size of the resized image before the crop: its shorter side (one number) with
            `shorter`, both sides with `stretch`, equal to `size` with `letterbox`.
        resize: `shorter` is Resize(resize_size) + CenterCrop(size); `stretch` is
            Resize(both sides of resize_size) + CenterCrop(size); `letterbox` is the largest image
            of the same proportions that fits into `size`, centred on the colour `fill`.
        interpolation: `bilinear` or `bicubic`, both antialiased.
        channels: 3 for RGB, 1 for luminance like Pillow's "L".
        fill: one value per channel (red first), 0 to 255.
    """

    size: Size = 224
    resize_size: Size = 256
    resize: str = "shorter"
    interpolation: str = "bilinear"
    channels: int = 3
    fill: tuple[int, ...] = (0, 0, 0)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        return *both_sides(self.size), self.channels


@dataclass(frozen=True)
class ResizePlan:
    """Position of the model's input relative to the resized image.

    Attributes:
        height, width: size of the whole resized image.
        top, left: where the used part begins, in the resized image.
        rows, columns: size of the used part; smaller than the input if it is padded.
        above, before: padding rows above and padding columns before the used part.
    """

    height: int
    width: int
    top: int
    left: int
    rows: int
    columns: int
    above: int = 0
    before: int = 0


def plan_resize(height: int, width: int, geometry: InputGeometry) -> ResizePlan:
    input_height, input_width = both_sides(geometry.size)
    new_height, new_width = both_sides(geometry.resize_size)
    if geometry.resize == "letterbox":
        rows, columns = input_height, input_width
        # One side becomes the input's; the other is truncated to an integer.
        if width * input_height <= height * input_width:
            columns = max(1, int(input_height * width / height))
        else:
            rows = max(1, int(input_width * height / width))
        above, before = (input_height - rows) // 2, (input_width - columns) // 2
        return ResizePlan(rows, columns, 0, 0, rows, columns, above, before)
    if geometry.resize == "shorter":
        # The shorter side becomes `resize_size`; the longer is truncated to an integer.
        if width <= height:
            new_height = int(new_width * height / width)
        else:
            new_width = int(new_height * width / height)
    # The crop's offset is rounded half to even.
    top = int(round((new_height - input_height) / 2.0))
    left = int(round((new_width - input_width) / 2.0))
    return ResizePlan(new_height, new_width, top, left, input_height, input_width)
