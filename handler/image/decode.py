"""Image bytes -> uint8 HWC RGB pixels; JPEG through libjpeg-turbo, the rest through Pillow.

Large JPEGs are decoded at 1/2, 1/4 or 1/8 (DCT scaling), down to a margin above the resize size.
Other eighths have no SIMD inverse DCT in libjpeg-turbo: 7/8 was slower than a full decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from offpath.handler.errors import (
    ImageTooCostly,
    ImageTooLarge,
    ItemError,
    UndecodableImage,
    UnsupportedFormat,
)
from offpath.handler.image.decode_cost import (
    BudgetedBytes,
    check_jpeg_cost,
    check_scans,
    check_tiff_cost,
)
from offpath.handler.image.formats import FORMATS
from offpath.handler.image.geometry import Square
from offpath.handler.request.payload import Payload

Pixels = npt.NDArray[np.uint8]

JPEG_MAGIC = b"\xff\xd8\xff"
# Pillow takes 24 bytes a row besides its pixels: 1 x 50,000,000 px would be a gigabyte.
MAX_SIDE = 1_000_000
SCALE_DENOMINATORS = (8, 4, 2)
# How much larger than the resize size a scaled decode stays by default, in the worker and in a thin
# client. 1.5 keeps probabilities within 0.03 of the exact decode on photographs as they ship, and
# within 0.06 on camera-sized ones (tests/handler/model/test_parity.py).
SCALE_MARGIN = 1.5
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
# Those that bring the stored picture's last column (row) to the front.
LEFT_IS_LAST, TOP_IS_LAST = (2, 3, 6, 7), (3, 4, 7, 8)
# TIFF 6.0, sections 8, 15 and 22; 7 is JPEG as Technical Note 2 corrects it.
BITS_TAG, COMPRESSION_TAG, SAMPLES_TAG = 258, 259, 277
TILE_WIDTH_TAG, TILE_LENGTH_TAG = 322, 323
NO_COMPRESSION, JPEG_COMPRESSIONS = 1, (6, 7)
# Where each strip or tile begins, and its bytes.
PIECE_TAGS, PIECE_LENGTH_TAGS = (273, 324), (279, 325)
# 8-bit RGBA: libtiff decodes all of a picture in one call, in which no budget can reach it.
MOST_BITS_A_PIXEL = 32
TIFF_MAGIC = (b"II", b"MM")


@dataclass(frozen=True)
class DecodeOptions:
    """How to decode.

    Attributes:
        min_size: shorter side in pixels that a scaled decode keeps at least; 0 decodes in full.
        by_longer: `min_size` is of the longer side: what a letterbox resizes by.
        exif_orientation: turn the picture as its EXIF tag says; the stock handler does not.
        max_pixels: limit on width x height as the header states it.
    """

    min_size: int = 0
    exif_orientation: bool = False
    max_pixels: int = 50_000_000
    by_longer: bool = False

    @classmethod
    def for_square(
        cls, square: Square, scale_margin: float, **others: Any
    ) -> DecodeOptions:
        """What a square needs, resized from `scale_margin` times as many pixels at least."""
        by_longer = square.resize == "letterbox"
        size = int(square.resize_size * scale_margin)
        return cls(min_size=size, by_longer=by_longer, **others)


@dataclass(frozen=True)
class DecodedImage:
    """Pixels, and the size that the picture has in full.

    Attributes:
        pixels: uint8 [height, width, 3], RGB; smaller than the picture after a scaled decode.
        height, width: of the full picture, in pixels; the resize geometry follows these.
        denominator: pixels of the full picture per decoded pixel, along each side. Exact also
            where the size does not divide: the last decoded pixel then reaches over the edge.
        top, left: where the picture begins, in decoded pixels; above 0 where it was turned and
            the pixel that reaches over the edge came first.
        is_jpeg: lost detail when it was made, so that a transform may round otherwise than Pillow.
    """

    pixels: Pixels
    height: int
    width: int
    denominator: int = 1
    top: float = 0.0
    left: float = 0.0
    is_jpeg: bool = False


def decode_image(payload: Payload, options: DecodeOptions) -> DecodedImage:
    """Decodes one picture.

    Raises:
        UnsupportedFormat: none of FORMATS.
        ImageTooLarge: over `max_pixels` or MAX_SIDE by the header; nothing was decoded.
        UndecodableImage: truncated or broken data.
        ImageTooCostly: made to cost far more than its size.
    """
    if payload[:3] == JPEG_MAGIC:
        check_jpeg_cost(payload)
        decoded = _decode_jpeg(payload, options)
        if decoded is not None:
            return decoded
    return _decode_with_pillow(payload, options)


def choose_scale(height: int, width: int, options: DecodeOptions) -> int:
    """Denominator 8, 4, 2 or 1 at which the side that counts still has `min_size` pixels."""
    least = options.min_size
    if least <= 0:
        return 1
    side = max(height, width) if options.by_longer else min(height, width)
    return next((d for d in SCALE_DENOMINATORS if -(-side // d) >= least), 1)


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raises ImageTooLarge for a picture over `max_pixels` or MAX_SIDE."""
    if max(height, width) > MAX_SIDE:
        raise ImageTooLarge(
            f"{width} x {height} pixels; a side of at most {MAX_SIDE} is accepted"
        )
    if height * width > max_pixels:
        raise ImageTooLarge(
            f"{width} x {height} pixels; at most {max_pixels} are accepted"
        )


def _check_tiff(image: Image.Image, payload: Payload, max_pixels: int) -> None:
    """What libtiff does in one call, in which the budget cannot reach it.

    A TIFF may state tiles of a gigabyte for a small picture, of which a whole one is allocated;
    have the same megabytes for each of its strips; and hold JPEGs of thousands of scans.
    """
    tags = getattr(image, "tag_v2", {})
    sides = tags.get(TILE_LENGTH_TAG, 0), tags.get(TILE_WIDTH_TAG, 0)
    check_pixels(*sides, max_pixels)
    compression = tags.get(COMPRESSION_TAG, NO_COMPRESSION)
    if compression == NO_COMPRESSION:
        return
    pixels, depths = image.height * image.width, tags.get(BITS_TAG, (1,))
    bits = sum(depths) if len(depths) > 1 else depths[0] * tags.get(SAMPLES_TAG, 1)
    if pixels * bits > max_pixels * MOST_BITS_A_PIXEL:
        raise ImageTooLarge(
            f"{pixels} pixels of {bits} bits; at most {max_pixels} of {MOST_BITS_A_PIXEL}"
        )
    pieces = next((len(tags[tag]) for tag in PIECE_TAGS if tag in tags), 1)
    lengths = next((tags[tag] for tag in PIECE_LENGTH_TAGS if tag in tags), None)
    # Without lengths libtiff takes the rest of the file for each.
    total = pieces * len(payload) if lengths is None else sum(lengths)
    if total > len(payload):
        raise ImageTooCostly("its pieces share their bytes")
    if compression in JPEG_COMPRESSIONS:
        check_scans(payload, pixels // max(1, pieces))


def _decode_jpeg(payload: Payload, options: DecodeOptions) -> DecodedImage | None:
    """JPEG by libjpeg-turbo; None where Pillow has to try (CMYK, recoverable damage)."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
    except ValueError:
        return None
    check_pixels(height, width, options.max_pixels)
    if colorspace in ("CMYK", "YCCK"):
        return None  # Pillow knows Adobe's inverted inks
    denominator = choose_scale(height, width, options)
    try:
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
    """Turns pixels by the EXIF tag."""
    orientation = read_orientation(payload)
    if orientation not in TURNS:
        return image
    # A copy: Pillow's own array is read-only, of which torch warns on the log.
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
    """The EXIF tag, which Pillow reads from the header without decoding; None without one."""
    try:
        exif = Image.open(BudgetedBytes(payload), formats=("JPEG",)).getexif()
        return exif.get(ORIENTATION_TAG)
    except Exception:  # a broken tag is no reason to refuse a picture that decodes
        return None


def _decode_with_pillow(payload: Payload, options: DecodeOptions) -> DecodedImage:
    if payload[:2] in TIFF_MAGIC:
        check_tiff_cost(payload)
    try:
        with Image.open(BudgetedBytes(payload), formats=tuple(FORMATS)) as image:
            check_pixels(image.height, image.width, options.max_pixels)
            _check_tiff(image, payload, options.max_pixels)
            turned = _turn(image) if options.exif_orientation else image
            pixels = _to_rgb(turned)
    except ItemError:
        raise
    except UnidentifiedImageError as error:
        accepted = ", ".join(FORMATS)
        raise UnsupportedFormat(f"none of the formats {accepted}") from error
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(
            f"at most {options.max_pixels} pixels are accepted"
        ) from error
    except Exception as error:
        # Pillow's plugins raise anything on broken input: OSError, SyntaxError, struct.error, ...
        raise UndecodableImage("the image data is broken or incomplete") from error
    return DecodedImage(pixels, pixels.shape[0], pixels.shape[1])


def _turn(image: Image.Image) -> Image.Image:
    """Turned by its EXIF tag. ImageOps.exif_transpose also writes all of the EXIF anew."""
    image.load()  # in which Pillow turns a TIFF by itself
    orientation = image.getexif().get(ORIENTATION_TAG)
    return image.transpose(TURNS[orientation]) if orientation in TURNS else image


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
