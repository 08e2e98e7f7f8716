"""Stands for torchcodec.decoders, by torchvision's decoder for the CPU.

As in torchcodec 0.17, a list is decoded in one call, one bad file fails it, and EXIF turns images.
"""

from __future__ import annotations

import io

import torch
from PIL import Image
from torchvision.io import decode_jpeg as decode_one

ORIENTATION = 0x0112
# Quarters of a turn, anticlockwise; the orientations that the tests need.
QUARTERS = {3: 2, 6: -1, 8: 1}
# The number of files of each call.
calls: list[int] = []


def decode_jpeg(
    source: list[torch.Tensor], *, mode: str = "RGB", device: str | torch.device = "cpu"
) -> list[torch.Tensor]:
    calls.append(len(source))
    return [_turn(decode_one(file, mode=mode), file) for file in source]


def _turn(image: torch.Tensor, file: torch.Tensor) -> torch.Tensor:
    exif = Image.open(io.BytesIO(file.numpy().tobytes())).getexif()
    return image.rot90(QUARTERS.get(exif.get(ORIENTATION, 1), 0), (1, 2))
