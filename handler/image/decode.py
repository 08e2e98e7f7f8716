"""Decodes image bytes to uint8 HWC RGB pixels: JPEG by libjpeg-turbo, other formats by Pillow.

Large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size (DCT scaling), but never below a margin
above the resize size. libjpeg-turbo has no SIMD inverse DCT for other eighths: 7/8 was slower than
a full decode.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from offpath.handler.error_kinds import GZIP, GZIPPED
from offpath.handler.errors import (
    ImageTooCostly,
    ImageTooLarge,
    ItemError,
    UndecodableImage,
    UnsupportedFormat,
)
from offpath.handler.image import decode_cost
from offpath.handler.image.decode_cost import (
    COEFFICIENT_BYTES,
    MEMORY,
    PILLOW_BYTES,
    PILLOW_S,
    BudgetedBytes,
    check_jpeg_cost,
    check_pixels,
)
from offpath.handler.image.formats import FORMATS, Payload
from offpath.handler.image.geometry import InputGeometry, Size, both_sides
from offpath.handler.image.tiff_cost import check_tiff_cost

Pixels = npt.NDArray[np.uint8]

JPEG_MAGIC = b"\xff\xd8\xff"
SCALE_DENOMINATORS = (8, 4, 2)
# Default margin of a scaled decode: it keeps this many times the resize size, in the worker and in
# a thin client. 1.5 keeps probabilities within 0.03 of the exact decode on ordinary photographs,
# and within 0.06 on camera-sized ones (tests/handler/model/test_parity.py).
SCALE_MARGIN = 1.5
# The EXIF tag of the orientation (EXIF 2.3, 4.6.4), the turn that makes each value upright, and the
# values that swap width and height.
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
# Orientations that bring the stored image's last column (row) to the front.
LEFT_IS_LAST, TOP_IS_LAST = (2, 3, 6, 7), (3, 4, 7, 8)
TIFF_MAGIC = (b"II", b"MM")


def ignore(predicted_s: float) -> None:
    """Accepts every cost."""


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of the decoder.

    Attributes:
        min_size: least height and width after a scaled decode, in pixels; 0 decodes in full.
        by_longer: one side of that length is enough, because a letterbox resizes by that side.
        exif_orientation: turn the image by its EXIF tag; TorchServe's handler does not.
        max_pixels: limit on width x height as stated by the header.
        check_cost: gets the predicted CPU seconds of an image before it is decoded, and may raise
            ImageLeft.
    """

    min_size: Size = 0
    exif_orientation: bool = False
    max_pixels: int = 50_000_000
    by_longer: bool = False
    check_cost: Callable[[float], None] = ignore

    @classmethod
    def for_input(
        cls, geometry: InputGeometry, scale_margin: float, **others: Any
    ) -> DecodeOptions:
        """Returns options that leave at least `scale_margin` times the resize size."""
        by_longer = geometry.resize == "letterbox"
        height, width = both_sides(geometry.resize_size)
        if others.get("exif_orientation"):
            # The sides may change places after the decode.
            height = width = max(height, width)
        least = int(height * scale_margin), int(width * scale_margin)
        size = least[0] if height == width else least
        return cls(min_size=size, by_longer=by_longer, **others)

    @cached_property
    def least_sides(self) -> tuple[int, int]:
        return both_sides(self.min_size)


@dataclass(frozen=True)
class DecodedImage:
    """Decoded pixels, and the size of the full image.

    Attributes:
        pixels: uint8 [height, width, 3], RGB; smaller than the image after a scaled decode.
        height, width: size of the full image, in pixels; the resize geometry follows them.
        denominator: pixels of the full image per decoded pixel, along each side. Also exact if
            the size does not divide: the last decoded pixel then reaches over the edge.
        top, left: where the image begins, in decoded pixels; above 0 if the image was turned
            and the pixel that reaches over the edge came first.
        is_jpeg: the format is lossy, so a transform may round differently from Pillow.
    """

    pixels: Pixels
    height: int
    width: int
    denominator: int = 1
    top: float = 0.0
    left: float = 0.0
    is_jpeg: bool = False


def decode_image(payload: Payload, options: DecodeOptions) -> DecodedImage:
    """Decodes one image.

    Raises:
        UnsupportedFormat: the payload is in none of FORMATS.
        ImageTooLarge: the header states more than `max_pixels` or MAX_SIDE; nothing was decoded.
        UndecodableImage: the data is truncated or broken.
        ImageTooCostly: the image was made to cost far more than its size justifies.
    """
    begin_s = time.thread_time()
    if payload[:3] == JPEG_MAGIC:
        decoded = _decode_jpeg(payload, options)
        if decoded is not None:
            return decoded
    return _decode_with_pillow(payload, options, time.thread_time() - begin_s)


def choose_scale(height: int, width: int, options: DecodeOptions) -> int:
    """Returns the largest denominator (8, 4, 2, 1) that leaves `min_size` pixels."""
    rows, columns = options.least_sides
    if rows <= 0:
        return 1
    are_enough = any if options.by_longer else all
    for denominator in SCALE_DENOMINATORS:
        left = -(-height // denominator), -(-width // denominator)
        if are_enough((left[0] >= rows, left[1] >= columns)):
            return denominator
    return 1


def _decode_jpeg(payload: Payload, options: DecodeOptions) -> DecodedImage | None:
    """Decodes a JPEG by libjpeg-turbo; returns None if Pillow has to try (CMYK, damage)."""
    frame = check_jpeg_cost(payload)
    if frame is None:
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
    except ValueError:
        return None
    check_pixels(height, width, options.max_pixels)
    if colorspace in ("CMYK", "YCCK"):
        return None  # Pillow handles Adobe's inverted inks
    options.check_cost(frame.predicted_s)
    denominator = choose_scale(height, width, options)
    bytes_each = 3 / denominator**2 + (0 if frame.scans == 1 else COEFFICIENT_BYTES)
    try:
        with MEMORY.hold(int(height * width * bytes_each)):
            pixels = simplejpeg.decode_jpeg(
                payload,
                "RGB",
                min_height=-(-height // denominator),
                min_width=-(-width // denominator),
            )
    except ValueError:
        return None
    image = DecodedImage(pixels, height, width, denominator, is_jpeg=True)
    return _turn_jpeg(payload, image) if options.exif_orientation else image


def _turn_jpeg(payload: Payload, image: DecodedImage) -> DecodedImage:
    orientation = read_orientation(payload)
    if orientation not in TURNS:
        return image
    # Copied, because Pillow's own array is read-only and torch would warn about that in the log.
    turned = np.array(Image.fromarray(image.pixels).transpose(TURNS[orientation]))
    height, width = image.height, image.width
    if orientation in SWAPPING_ORIENTATIONS:
        height, width = width, height
    rows_over = turned.shape[0] - height / image.denominator
    columns_over = turned.shape[1] - width / image.denominator
    return DecodedImage(
        turned,
        height,
        width,
        image.denominator,
        top=rows_over if orientation in TOP_IS_LAST else 0.0,
        left=columns_over if orientation in LEFT_IS_LAST else 0.0,
        is_jpeg=True,
    )


def read_orientation(payload: Payload) -> object:
    """Returns the EXIF orientation, read from the header without decoding; None without one."""
    try:
        exif = Image.open(BudgetedBytes(payload), formats=("JPEG",)).getexif()
        return exif.get(ORIENTATION_TAG)
    except Exception:  # a broken tag is no reason to refuse an image that decodes
        return None


def _decode_with_pillow(payload: Payload, options: DecodeOptions, spent_s: float) -> DecodedImage:
    # Pillow takes at least as long as libjpeg-turbo did, often in one call.
    if spent_s > decode_cost.BUDGET_S / 2:
        raise ImageTooCostly("the image is damaged and takes too long to decode")
    if payload[:2] in TIFF_MAGIC:
        check_tiff_cost(payload, options.max_pixels)
    try:
        file = BudgetedBytes(payload, spent_s)
        with Image.open(file, formats=tuple(FORMATS)) as image:
            check_pixels(image.height, image.width, options.max_pixels)
            options.check_cost(PILLOW_S * image.height * image.width)
            with MEMORY.hold(PILLOW_BYTES * image.height * image.width):
                turned = _turn(image) if options.exif_orientation else image
                image.load()
                image.fp = None  # where a WebP keeps a second copy of its pixels
                rgb = to_rgb(turned)
    except ItemError:
        raise
    except UnidentifiedImageError as error:
        cause = f"the image is in none of the formats {', '.join(FORMATS)}"
        raise UnsupportedFormat(GZIPPED if payload[:2] == GZIP else cause) from error
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(
            f"the image is too large; at most {options.max_pixels} pixels are accepted"
        ) from error
    except Exception as error:
        # Pillow's plugins raise anything on broken input: OSError, SyntaxError, struct.error, ...
        raise UndecodableImage("the image data is broken or incomplete") from error
    # A WebP keeps four copies of its pixels; most go before the array is made.
    del image, turned
    pixels = np.asarray(rgb)
    return DecodedImage(pixels, pixels.shape[0], pixels.shape[1])


def _turn(image: Image.Image) -> Image.Image:
    """Turns an image by its EXIF tag, without rewriting the EXIF as ImageOps does."""
    image.load()  # turns a TIFF already
    if len(image.info.get("exif", b"")) > decode_cost.MAX_EXIF_BYTES:
        raise ImageTooCostly("the image has too much EXIF data")
    orientation = image.getexif().get(ORIENTATION_TAG)
    return image.transpose(TURNS[orientation]) if orientation in TURNS else image


def to_rgb(image: Image.Image) -> Image.Image | Pixels:
    """Converts any of Pillow's modes to 8-bit RGB, as Pillow does; alpha is dropped."""
    # Pillow makes all grey above 255 white. 16-bit grey with such values keeps its high byte.
    if image.mode.startswith("I;16") and (grey := np.asarray(image)).max() > 255:
        return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
