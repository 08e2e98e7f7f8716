"""Decodes the JPEGs of a batch together on a CUDA device, if the settings say `decode: nvjpeg`.

This module is separate from decode.py, which a thin client imports without torch. Images that
nvjpeg cannot decode, and images that must be refused, are left to the CPU's decoder: only that
one raises errors for clients.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec

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
from offpath.handler.image.formats import Payload
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.torch_transform import transform_on_device
from offpath.handler.model.device_errors import is_out_of_memory, is_sticky

logger = logging.getLogger(__name__)

# Maps files, uint8 [length] on the host, to RGB images, uint8 [3, height, width] on the device, as
# they are stored and not turned. Raises RuntimeError if one of the files cannot be decoded.
DecodeTogether = Callable[[list[torch.Tensor]], list[torch.Tensor]]

JPEG_END = b"\xff\xd9"
# Some writers add a few bytes after the end.
JPEG_TAIL_BYTES = 64
COLORSPACES = ("YCbCr", "Gray")
# Pixels that are resized in one call: 12 bytes each while they are floats.
PIXELS_TOGETHER = 32_000_000


def find_nvjpeg(device: torch.device) -> DecodeTogether | None:
    """Returns the first decoder of nvJPEG that works here; None, with a warning, without one."""
    if device.type != "cuda":
        logger.warning("decode: nvjpeg needs a CUDA device; the CPU decodes instead")
        return None
    tiny = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    for package in filter(find_spec, DECODERS):
        try:
            decode = DECODERS[package](device)
            decode([_as_tensor(tiny)])
            return decode
        except Exception as error:  # a build for another torch or without nvJPEG, or the driver
            logger.warning("decode: nvjpeg does not work with %s: %s", package, error)
    logger.warning("decode: nvjpeg does not work; the CPU decodes instead")
    return None


def load_torchcodec(device: torch.device) -> DecodeTogether:
    decode_jpeg = import_module("torchcodec.decoders").decode_jpeg
    return lambda files: decode_jpeg([*map(_without_exif, files)], device=device)


def load_torchvision(device: torch.device) -> DecodeTogether:
    from torchvision.io import ImageReadMode, decode_jpeg

    return lambda files: decode_jpeg(files, ImageReadMode.RGB, device=device)


# By the package. torchvision has deprecated its own.
DECODERS = {"torchcodec": load_torchcodec, "torchvision": load_torchvision}


class DeviceDecoder:
    """Decodes and resizes the JPEGs of a batch together on a device.

    Attributes:
        without_memory: images of the last batch that did not fit into the device's memory.
    """

    def __init__(
        self, decode: DecodeTogether, options: DecodeOptions, geometry: InputGeometry
    ) -> None:
        self.without_memory = 0
        self._decode, self._options, self._geometry = decode, options, geometry

    def takes(self, payload: Payload) -> bool:
        """Tells whether nvjpeg should try a payload, by its header and its end.

        Left to the CPU are other formats, CMYK, turned and truncated images, and images over the
        limits.
        """
        return is_for_device(payload, self._options)

    def decode(self, payloads: Sequence[Payload]) -> list[torch.Tensor | None]:
        """Decodes JPEGs that it takes in one call, in full.

        Returns:
            uint8 [3, height, width] on the device for each payload; None for a broken image, which
            is left to the CPU.
        """
        self.without_memory = 0
        return self._together_or_alone([_as_tensor(one) for one in payloads], self._decode)

    def resize(self, images: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Resizes what `decode` returned; images of equal size in one call.

        Returns:
            uint8 [height, width, channels] on the device for each image; None for each image
            that is left to the CPU.
        """
        inputs: list[torch.Tensor | None] = [None] * len(images)
        groups: dict[torch.Size, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        for index, image in enumerate(images):
            if image is not None:
                groups[image.shape].append((index, image))
        call = partial(transform_on_device, geometry=self._geometry)
        for shape, group in groups.items():
            most = max(1, PIXELS_TOGETHER // (shape[1] * shape[2]))
            for start in range(0, len(group), most):
                indices, equal = zip(*group[start : start + most])
                made = self._together_or_alone([*equal], call)
                for index, pixels in zip(indices, made):
                    inputs[index] = pixels
        return inputs

    def _together_or_alone(
        self,
        inputs: list[torch.Tensor],
        call: Callable[[list[torch.Tensor]], Sequence[torch.Tensor | None]],
    ) -> list[torch.Tensor | None]:
        """Makes one call, or one for each input if a bad one fails the call for all."""
        if not inputs:
            return []
        try:
            return [*call(inputs)]
        except RuntimeError as error:
            if is_sticky(error):
                raise
            has_no_memory = is_out_of_memory(error)
        if has_no_memory:
            torch.cuda.empty_cache()  # nvjpeg has its own memory beside torch's
        if len(inputs) == 1:
            self.without_memory += has_no_memory
            return [None]
        return [one for each in inputs for one in self._together_or_alone([each], call)]


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
    if frame is None or not frame.has_tables:
        return False  # an H100 decoded such a file to pixels of its own invention
    if options.exif_orientation and read_orientation(payload) in TURNS:
        return False
    return colorspace in COLORSPACES


def _as_tensor(payload: Payload) -> torch.Tensor:
    """Returns the bytes as a uint8 tensor, without a copy."""
    # torch warns about bytes that are not writable; silence_decoders turns that off.
    return torch.frombuffer(payload, dtype=torch.uint8)


def _without_exif(file: torch.Tensor) -> torch.Tensor:
    """Hides the orientation, by which torchcodec turns every image; the settings decide that."""
    return _as_tensor(file.numpy().tobytes().replace(b"Exif\0\0", b"Exif\0\1"))
