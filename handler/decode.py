"""Image bytes -> uint8 HWC RGB pixels; JPEG through libjpeg-turbo, the rest through Pillow.

Large JPEGs are decoded at 1/2, 1/4 or 1/8 (DCT scaling), down to a margin above the resize size.
Other eighths have no SIMD inverse DCT in libjpeg-turbo: 7/8 was slower than a full decode.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

# Imported here, not at the first such request: a plugin's import opens files.
from PIL import MpoImagePlugin  # noqa: F401  isort: skip
from PIL import TiffImagePlugin  # noqa: F401  isort: skip
from PIL import WebPImagePlugin  # noqa: F401  isort: skip

from handler.errors import (
    BadTensor,
    ImageTooLarge,
    ItemError,
    UndecodableImage,
    UnsupportedFormat,
)
from handler.payload import Payload

Pixels = npt.NDArray[np.uint8]

# What Image.open may try: no EPS (runs Ghostscript), no rarely tested parsers.
PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
JPEG_MAGIC = b"\xff\xd8\xff"
NPY_MAGIC = b"\x93NUMPY"
# Version 3 is for field names that are not ASCII: never a plain array.
NPY_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# NumPy's own bound is 10,000 bytes of text.
MAX_NPY_HEADER_BYTES = 16_384
SCALE_DENOMINATORS = (8, 4, 2)
# The EXIF tag of the orientation (EXIF 2.3, 4.6.4), what turns each value upright, and the values
# that swap width and height.
ORIENTATION_TAG = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPPING_ORIENTATIONS = (5, 6, 7, 8)

# Our own limit is checked from the header; Pillow's warning would be a line in the log.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class DecodeOptions:
    """How to decode.

    Attributes:
        min_size: shorter side in pixels that a scaled decode keeps at least; 0 decodes in full.
        exif_orientation: turn the picture as its EXIF tag says; the stock handler does not.
        max_pixels: limit on width x height as the header states it.
    """

    min_size: int = 0
    exif_orientation: bool = False
    max_pixels: int = 50_000_000


@dataclass(frozen=True)
class DecodedImage:
    """Pixels, and the size that the picture has in full.

    Attributes:
        pixels: uint8 [height, width, 3], RGB; smaller than the picture after a scaled decode.
        height, width: of the full picture, in pixels; the resize geometry follows these.
        denominator: pixels of the full picture per decoded pixel, along each side. Exact also
            where the size does not divide: the last decoded pixel then reaches over the edge.
    """

    pixels: Pixels
    height: int
    width: int
    denominator: int = 1


def decode_image(payload: Payload, options: DecodeOptions) -> DecodedImage:
    """Decodes one picture.

    Raises:
        UnsupportedFormat: none of JPEG, PNG, WebP, GIF, BMP, TIFF.
        ImageTooLarge: over `max_pixels` by the header; nothing was decoded.
        UndecodableImage: truncated or broken data.
    """
    if payload[:3] == JPEG_MAGIC:
        decoded = _decode_jpeg(payload, options)
        if decoded is not None:
            return decoded
    return _decode_with_pillow(payload, options)


def is_npy(payload: Payload) -> bool:
    """Whether the payload is a NumPy array file, the thin client's format."""
    return bytes(payload[:6]) == NPY_MAGIC


def read_npy(payload: Payload, image_size: int) -> Pixels:
    """Reads a thin client's array: uint8 [image_size, image_size, 3], never pickled.

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    Raises:
        BadTensor: another shape or dtype, pickled objects, or broken data.
    """
    expected = (image_size, image_size, 3)
    try:
        shape, is_fortran, dtype, offset = _read_npy_header(payload)
    except Exception as error:
        # NumPy's header parser raises anything on broken input: TokenError, RecursionError, ...
        raise BadTensor(
            f"not a plain npy array; send uint8 {list(expected)}"
        ) from error
    # Before any memory is taken: a header may claim terabytes.
    if dtype != np.uint8 or shape != expected:
        raise BadTensor(
            f"{dtype} {list(shape)}; the model takes uint8 {list(expected)}"
        )
    count = math.prod(expected)
    if len(payload) - offset < count:
        raise BadTensor(f"{len(payload) - offset} bytes of pixels; {count} are needed")
    pixels: Pixels = np.frombuffer(payload, np.uint8, count, offset)
    return pixels.reshape(expected, order="F" if is_fortran else "C")


def _read_npy_header(
    payload: Payload,
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, dtype and where the pixels begin."""
    file = io.BytesIO(payload[:MAX_NPY_HEADER_BYTES])
    version = np.lib.format.read_magic(file)
    shape, is_fortran, dtype = NPY_HEADER_READERS[version](file)
    return shape, is_fortran, dtype, file.tell()


def choose_scale(height: int, width: int, min_size: int) -> int:
    """Denominator 8, 4, 2 or 1 at which the shorter side still has `min_size` pixels."""
    if min_size <= 0:
        return 1
    short = min(height, width)
    return next((d for d in SCALE_DENOMINATORS if -(-short // d) >= min_size), 1)


def _check_pixels(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise ImageTooLarge(
            f"{width} x {height} pixels; at most {max_pixels} are accepted"
        )


def _decode_jpeg(payload: Payload, options: DecodeOptions) -> DecodedImage | None:
    """JPEG by libjpeg-turbo; None where Pillow has to try (CMYK, recoverable damage)."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
    except ValueError:
        return None
    _check_pixels(height, width, options.max_pixels)
    if colorspace in ("CMYK", "YCCK"):
        return None  # Pillow knows Adobe's inverted inks
    denominator = choose_scale(height, width, options.min_size)
    try:
        pixels = simplejpeg.decode_jpeg(
            payload,
            "RGB",
            min_height=-(-height // denominator),
            min_width=-(-width // denominator),
        )
    except ValueError:
        return None
    image = DecodedImage(pixels, height, width, denominator)
    return _turn_jpeg(payload, image) if options.exif_orientation else image


def _turn_jpeg(payload: Payload, image: DecodedImage) -> DecodedImage:
    """Turns pixels by the EXIF tag, which Pillow reads from the header without decoding."""
    try:
        exif = Image.open(io.BytesIO(payload), formats=("JPEG",)).getexif()
        orientation = exif.get(ORIENTATION_TAG)
    except Exception:  # a broken tag is no reason to refuse a picture that decodes
        return image
    if orientation not in TURNS:
        return image
    # A copy: Pillow's own array is read-only, of which torch warns on the log.
    turned = np.array(Image.fromarray(image.pixels).transpose(TURNS[orientation]))
    if orientation in SWAPPING_ORIENTATIONS:
        return DecodedImage(turned, image.width, image.height, image.denominator)
    return DecodedImage(turned, image.height, image.width, image.denominator)


def _decode_with_pillow(payload: Payload, options: DecodeOptions) -> DecodedImage:
    try:
        with Image.open(io.BytesIO(payload), formats=PILLOW_FORMATS) as image:
            _check_pixels(image.height, image.width, options.max_pixels)
            turned = (
                ImageOps.exif_transpose(image) if options.exif_orientation else image
            )
            pixels = _to_rgb(turned)
    except ItemError:
        raise
    except UnidentifiedImageError as error:
        raise UnsupportedFormat(
            "not a JPEG, PNG, WebP, GIF, BMP or TIFF image"
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(
            f"at most {options.max_pixels} pixels are accepted"
        ) from error
    except Exception as error:
        # Pillow's plugins raise anything on broken input: OSError, SyntaxError, struct.error, ...
        raise UndecodableImage("the image data is broken or incomplete") from error
    return DecodedImage(pixels, pixels.shape[0], pixels.shape[1])


def _to_rgb(image: Image.Image) -> Pixels:
    """Any of Pillow's modes -> uint8 RGB; 16-bit grey keeps its high byte, alpha is dropped."""
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "I":
        grey = (np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
