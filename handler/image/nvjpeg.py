"""Decodes the JPEGs of a batch together on a CUDA device, if the settings say `decode: nvjpeg`.

This module is separate from decode.py, which a thin client imports without torch. Pictures that
nvjpeg cannot decode, and pictures that must be refused, are left to the CPU's decoder: only that
one raises errors for clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import simplejpeg
import torch

from offpath.handler.errors import ItemError
from offpath.handler.image.decode import (
    JPEG_MAGIC,
    TURNS,
    DecodeOptions,
    read_orientation,
)
from offpath.handler.image.decode_cost import check_jpeg_cost, check_pixels
from offpath.handler.process.sick_worker import is_sticky
from offpath.handler.request.payload import Payload

logger = logging.getLogger(__name__)

# Maps files, uint8 [length] on the host, to RGB pictures, uint8 [3, height, width] on the device.
# Raises RuntimeError if one of the files cannot be decoded.
DecodeTogether = Callable[[list[torch.Tensor]], list[torch.Tensor]]

JPEG_END = b"\xff\xd9"
# Some writers add a few bytes after the end.
JPEG_TAIL_BYTES = 64
COLORSPACES = ("YCbCr", "Gray")


def find_nvjpeg(device: torch.device) -> DecodeTogether | None:
    """Returns torchvision's nvjpeg decoder; None, with a warning, if it does not work here."""
    if device.type != "cuda":
        logger.warning("decode: nvjpeg needs a CUDA device; the CPU decodes instead")
        return None
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode_together(files: list[torch.Tensor]) -> list[torch.Tensor]:
        pictures: list[torch.Tensor] = decode_jpeg(
            files, ImageReadMode.RGB, device=device
        )
        return pictures

    tiny = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    try:
        decode_together([_as_tensor(tiny)])
    except RuntimeError as error:  # torchvision lacks nvjpeg, or the driver refuses
        logger.warning(
            "decode: nvjpeg does not work; the CPU decodes instead: %s", error
        )
        return None
    return decode_together


def decode_on_device(
    payloads: Sequence[Payload], options: DecodeOptions, decode: DecodeTogether
) -> list[torch.Tensor | None]:
    """Decodes a batch's JPEGs together, in full.

    Returns:
        uint8 [3, height, width] on the device for each payload; None for each payload that is left
        to the CPU: another format, CMYK, a turned, broken or truncated picture, or a picture over
        the limits.
    """
    fit = [i for i, payload in enumerate(payloads) if is_for_device(payload, options)]
    files = [_as_tensor(payloads[i]) for i in fit]
    pictures: list[torch.Tensor | None] = [None] * len(payloads)
    for index, picture in zip(fit, _together_or_alone(files, decode)):
        pictures[index] = picture
    return pictures


def is_for_device(payload: Payload, options: DecodeOptions) -> bool:
    """Decides by the header and the end of the file if nvjpeg should try."""
    if payload[:3] != JPEG_MAGIC:
        return False
    # nvjpeg invents the missing pixels of a truncated file; the CPU's decoder refuses the file.
    if JPEG_END not in bytes(payload[-JPEG_TAIL_BYTES:]):
        return False
    try:
        frame = check_jpeg_cost(payload)
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
        check_pixels(height, width, options.max_pixels)
    except (ValueError, ItemError):
        return False
    if frame is None or not frame.is_common or not frame.has_tables:
        return False  # an H100 decoded such a file to pixels of its own invention
    if options.exif_orientation and read_orientation(payload) in TURNS:
        return False
    return colorspace in COLORSPACES


def _together_or_alone(
    files: list[torch.Tensor], decode: DecodeTogether
) -> list[torch.Tensor | None]:
    """Decodes all files in one call, or each in its own call if one bad file fails that call.

    A file for which the device has no memory is left to the CPU like a bad one.
    """
    if not files:
        return []
    try:
        return [*decode(files)]
    except RuntimeError as error:
        if is_sticky(error):
            raise
        if len(files) == 1:
            return [None]
        return [p for file in files for p in _together_or_alone([file], decode)]


def _as_tensor(payload: Payload) -> torch.Tensor:
    """Returns the bytes as a uint8 tensor; TorchServe's bytearrays are not copied."""
    # torch would warn in the log about memory that is not writable.
    writable = payload if isinstance(payload, bytearray) else bytearray(payload)
    return torch.frombuffer(writable, dtype=torch.uint8)
