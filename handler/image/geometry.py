"""The geometry of the model's input: its size, and how a picture of any shape is fitted into it.

All lengths are in pixels. The arithmetic follows torchvision.transforms.v2.functional, including
its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

RESIZES = ("shorter", "stretch", "letterbox")
# Distance at which a filter still reads pixels, in pixels of the coarser grid.
FILTER_REACH = {"bilinear": 1, "bicubic": 2}
INTERPOLATIONS = tuple(FILTER_REACH)
CHANNELS = (1, 3)


@dataclass(frozen=True)
class InputGeometry:
    """Size and layout of the model's square input.

    Attributes:
        size: side of the square.
        resize_size: size of the resized picture before the crop: its shorter side with `shorter`,
            both sides with `stretch`, its longer side with `letterbox` (then equal to `size`).
        resize: `shorter` is Resize(resize_size) + CenterCrop(size); `stretch` is
            Resize((resize_size, resize_size)) + CenterCrop(size); `letterbox` is
            Resize(None, max_size=size), centred on a square of the colour `fill`.
        interpolation: `bilinear` or `bicubic`, both antialiased.
        channels: 3 for RGB, 1 for luminance like Pillow's "L".
        fill: one value per channel, 0 to 255.
    """

    size: int = 224
    resize_size: int = 256
    resize: str = "shorter"
    interpolation: str = "bilinear"
    channels: int = 3
    fill: tuple[int, ...] = (0, 0, 0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the pixels: height, width, channels."""
        return self.size, self.size, self.channels


@dataclass(frozen=True)
class ResizePlan:
    """Position of the model's input relative to the resized picture.

    Attributes:
        height, width: size of the whole resized picture.
        top, left: where the used part begins, in the resized picture.
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
    """Plans how a picture of the given size is fitted into the model's input."""
    size, resized = geometry.size, geometry.resize_size
    if geometry.resize == "letterbox":
        rows, columns = size, size
        # The longer side becomes `size`; the other is truncated to an integer.
        if width <= height:
            columns = max(1, int(size * width / height))
        else:
            rows = max(1, int(size * height / width))
        above, before = (size - rows) // 2, (size - columns) // 2
        return ResizePlan(rows, columns, 0, 0, rows, columns, above, before)
    if geometry.resize == "stretch":
        new_height, new_width = resized, resized
    elif width <= height:
        # The shorter side becomes `resize_size`; the longer is truncated to an integer.
        new_height, new_width = int(resized * height / width), resized
    else:
        new_height, new_width = resized, int(resized * width / height)
    # The crop's offset is rounded half to even.
    top = int(round((new_height - size) / 2.0))
    left = int(round((new_width - size) / 2.0))
    return ResizePlan(new_height, new_width, top, left, size, size)
