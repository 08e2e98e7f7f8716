"""Image bytes -> uint8 HWC RGB pixels; JPEG through libjpeg-turbo, the rest through Pillow.

Large JPEGs are decoded at 1/2, 1/4 or 1/8 (DCT scaling), down to a margin above the resize size.
Other eighths have no SIMD inverse DCT in libjpeg-turbo: 7/8 was slower than a full decode.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

# Imported here, not at the first such request: a plugin's import opens files.
from PIL import TiffImagePlugin, WebPImagePlugin  # noqa: F401  isort: skip

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
SCALE_DENOMINATORS = (8, 4, 2)
# The EXIF tag of the orientation (EXIF 2.3, 4.6.4) and its values that swap width and height.
ORIENTATION_TAG = 0x0112
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
        array = np.lib.format.read_array(io.BytesIO(payload), allow_pickle=False)
    except (
        ValueError,
        SyntaxError,
        EOFError,
        TypeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise BadTensor(
            f"not a plain npy array; send uint8 {list(expected)}"
        ) from error
    if array.dtype != np.uint8 or array.shape != expected:
        raise BadTensor(
            f"{array.dtype} {list(array.shape)}; the model takes uint8 {list(expected)}"
        )
    return array


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
    except Exception:  # a broken tag is no reason to refuse a picture that decodes
        return image
    orientation = exif.get(ORIENTATION_TAG, 1)
    tagged = Image.fromarray(image.pixels)
    tagged.getexif()[ORIENTATION_TAG] = orientation
    turned = np.asarray(ImageOps.exif_transpose(tagged))
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
