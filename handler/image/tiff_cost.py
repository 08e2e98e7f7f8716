"""Bounds the cost of a TIFF by its tags, before a decoder sees it.

Pillow and libtiff each read the tags and disagree about broken ones: Pillow skips a tag of a type
that it does not know and takes the next tag of the same number, but libtiff takes the first. What
they could read differently is refused here, so that the cost follows from one reading. libtiff
decodes a whole image in one call, which no time budget can interrupt.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offpath.handler.errors import ImageTooCostly, ImageTooLarge, UndecodableImage
from offpath.handler.image.decode_cost import (
    ARITHMETIC,
    MAX_ARITHMETIC_BYTES,
    check_pixels,
    check_scans,
    count_markers,
    find_frame,
)
from offpath.handler.image.formats import Payload

# The most tags in a directory, and the most strips or tiles, or numbers in all other tags. Pillow
# makes Python objects of them: a million strips took two seconds, 2.5 million fractions eight. A
# large camera's image with one strip per row has 10,000 strips.
MAX_TAGS, MAX_VALUES = 1_000, 100_000
# 8-bit RGBA, and how much more the tiles may hold than the image's limit, for their margins.
MAX_BITS_PER_PIXEL, TILE_MARGIN = 32, 1.1
# TIFF 6.0, sections 8, 15 and 22. Compression 7 is JPEG as Technical Note 2 corrects compression 6.
WIDTH, LENGTH, BITS, COMPRESSION, SAMPLES, ROWS, PLANES = (*(256, 257, 258, 259, 277, 278, 284),)
TILE_WIDTH, TILE_LENGTH = 322, 323
# Offsets and lengths of strips, then of tiles.
STRIPS, TILES = (273, 279), (324, 325)
NO_COMPRESSION, OLD_JPEG, JPEG = 1, 6, 7
SEPARATE_PLANES = 2
# The directories that Pillow also reads: EXIF, GPS, and interoperability.
DIRECTORY_TAGS = (34665, 34853, 40965)
# Bytes per value: the types of TIFF 6.0, IFD of Technical Note 1, and BigTIFF's own three.
SIZES = dict(zip(range(1, 14), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4)))
BIG_SIZES = {**SIZES, 16: 8, 17: 8, 18: 8}
# BYTE, ASCII and UNDEFINED hold profiles and thumbnails; Pillow keeps them as bytes.
PLAIN_TYPES = frozenset({1, 2, 7})
# SHORT, LONG, IFD and BigTIFF's LONG8 and IFD8: everything that sizes and offsets are written in.
UNSIGNED = {3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
CLASSIC_HEADERS = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0")
BIG_HEADER = b"II+\0"
# Pillow reads the header of a big-endian BigTIFF as that of a classic TIFF; libtiff does not.
AMBIGUOUS_HEADER = b"MM\0+"

Numbers = npt.NDArray[np.uint64]


class Tag(NamedTuple):
    """An entry of a directory: its type, the number of its values, and where they are."""

    kind: int
    values: int
    at: int


class TiffTags:
    """The tags of one directory.

    Args:
        at: where the directory begins, if it is one that only Pillow reads, and forgives.

    Raises:
        UndecodableImage: a tag comes twice, has an unknown type, or is cut off.
        ImageTooCostly: there are too many tags.
    """

    def __init__(self, payload: Payload, at: int | None = None) -> None:
        self._payload, self._tags = payload, dict[int, Tag]()
        self._order = order = "<" if payload[:2] == b"II" else ">"
        is_big, is_forgiven = payload[:4] == BIG_HEADER, at is not None
        word, count, sizes = ("Q", "Q", BIG_SIZES) if is_big else ("I", "H", SIZES)
        entry = struct.Struct(f"{order}HH{word}")
        word_bytes = struct.calcsize(word)
        # What Pillow may make Python objects of, without strips and tiles.
        self.other_values = 0
        try:
            if at is None:
                (at,) = struct.unpack_from(order + word, payload, word_bytes)
            (tags,) = struct.unpack_from(order + count, payload, at)
            if tags > MAX_TAGS:
                raise ImageTooCostly(f"the TIFF has more than {MAX_TAGS} tags")
            at += struct.calcsize(count)
            for _ in range(tags):
                tag, kind, values = entry.unpack_from(payload, at)
                if not is_forgiven and (tag in self._tags or kind not in sizes):
                    raise _ambiguous(tag)
                if kind not in PLAIN_TYPES and tag not in (*STRIPS, *TILES):
                    self.other_values += values
                at += entry.size
                (where,) = struct.unpack_from(order + word, payload, at)
                is_inline = values * sizes.get(kind, 1) <= word_bytes
                place = at if is_inline else where
                self._tags.setdefault(tag, Tag(kind, values, place))
                at += word_bytes
        except (struct.error, OverflowError) as error:
            if not is_forgiven:
                raise UndecodableImage("the TIFF's tags are cut off") from error

    def numbers(self, tag: int) -> Numbers | None:
        if tag not in self._tags:
            return None
        kind, values, at = self._tags[tag]
        if kind not in UNSIGNED or not values:
            raise _ambiguous(tag)
        if values > MAX_VALUES:
            raise ImageTooCostly(f"the TIFF has more than {MAX_VALUES} strips or tiles")
        try:
            dtype = self._order + UNSIGNED[kind]
            numbers = np.frombuffer(self._payload, dtype, values, at)
        except (ValueError, OverflowError) as error:
            raise UndecodableImage("the TIFF's tags are cut off") from error
        return numbers.astype(np.uint64)

    def number(self, tag: int, default: int) -> int:
        numbers = self.numbers(tag)
        if numbers is None:
            return default
        if len(numbers) != 1:
            raise _ambiguous(tag)
        return int(numbers[0])

    def directories(self) -> list[int]:
        """Returns the offsets of the directories that Pillow reads besides."""
        return [self.number(tag, 0) for tag in DIRECTORY_TAGS if tag in self._tags]


def check_tiff_cost(payload: Payload, max_pixels: int) -> None:
    """Refuses a TIFF that costs a decoder more than its size justifies.

    Raises:
        ImageTooLarge: the image or its tiles hold too many pixels or bits.
        ImageTooCostly: there are too many tags, values or scans, or strips share their bytes.
        UndecodableImage: two decoders could read the tags differently.
    """
    if payload[:4] == AMBIGUOUS_HEADER:
        raise UndecodableImage("big-endian BigTIFF is not accepted")
    if payload[:4] not in (*CLASSIC_HEADERS, BIG_HEADER):
        return  # no TIFF
    tags = TiffTags(payload)
    others = [TiffTags(payload, at) for at in tags.directories()]
    others += [TiffTags(payload, at) for exif in others for at in exif.directories()]
    if sum(part.other_values for part in (tags, *others)) > MAX_VALUES:
        raise ImageTooCostly(f"the TIFF has more than {MAX_VALUES} values in its tags")
    width, height = tags.number(WIDTH, 0), tags.number(LENGTH, 0)
    tile_width, tile_height = tags.number(TILE_WIDTH, 0), tags.number(TILE_LENGTH, 0)
    check_pixels(height, width, max_pixels)
    check_pixels(tile_height, tile_width, max_pixels)
    offsets, lengths = _read_pieces(tags)
    compression = tags.number(COMPRESSION, NO_COMPRESSION)
    if compression == NO_COMPRESSION or not width * height:
        return  # Pillow decodes it by itself, or not at all
    samples = tags.number(SAMPLES, 3 if compression == OLD_JPEG else 1)
    is_separate = tags.number(PLANES, 1) == SEPARATE_PLANES
    rows = min(height, tags.number(ROWS, height) or height)
    piece, pixels, count = rows * width, height * width, -(-height // rows)
    if tile_width or tile_height:
        piece = tile_width * tile_height
        count = -(-width // max(1, tile_width)) * -(-height // max(1, tile_height))
        pixels = max(pixels, int(count * piece / TILE_MARGIN))
    count *= samples if is_separate else 1
    depths = tags.numbers(BITS)
    bits = samples * (1 if depths is None else int(depths.max()))
    if pixels * bits > max_pixels * MAX_BITS_PER_PIXEL:
        raise ImageTooLarge(
            f"the image has {pixels} pixels of {bits} bits; at most {max_pixels} of "
            f"{MAX_BITS_PER_PIXEL} bits are accepted"
        )
    # Without lengths libtiff reads each piece to the end of the file.
    if count > 1 if lengths is None else _overlap(offsets, lengths):
        raise ImageTooCostly("the strips or tiles of the TIFF share their bytes")
    if compression in (OLD_JPEG, JPEG):
        _check_jpegs(payload, piece, 0 if offsets is None else int(offsets[-1]))
    # For each strip of each plane libtiff decodes all strips before it again.
    if compression == OLD_JPEG and is_separate:
        raise ImageTooCostly("the TIFF has old-style JPEG in separate planes")


def _read_pieces(tags: TiffTags) -> tuple[Numbers | None, Numbers | None]:
    """Returns offsets and lengths of the strips or tiles."""
    strips, tiles = ([tags.numbers(tag) for tag in pair] for pair in (STRIPS, TILES))
    has_strips, has_tiles = (any(one is not None for one in x) for x in (strips, tiles))
    if has_strips and has_tiles:
        raise UndecodableImage("the TIFF has both strips and tiles")
    offsets, lengths = tiles if has_tiles else strips
    return offsets, lengths


def _overlap(offsets: Numbers | None, lengths: Numbers) -> bool:
    if offsets is None or len(offsets) != len(lengths):
        raise UndecodableImage("the TIFF has not one offset for each length")
    begins, sizes = offsets[lengths > 0].astype(float), lengths[lengths > 0]
    order = np.argsort(begins)
    ends = (begins + sizes)[order]
    return bool((begins[order][1:] < ends[:-1]).any())


def _ambiguous(tag: int) -> UndecodableImage:
    return UndecodableImage(f"decoders read tag {tag} of the TIFF differently")


def _check_jpegs(payload: Payload, piece: int, last: int) -> None:
    # libtiff accepts a last strip whose JPEG is taller than the strip.
    frame = find_frame(memoryview(payload)[last:])
    check_scans(payload, max(piece, frame.pixels if frame else 0))
    if len(payload) > MAX_ARITHMETIC_BYTES and count_markers(payload, ARITHMETIC):
        raise ImageTooCostly(
            f"the TIFF has more than {MAX_ARITHMETIC_BYTES} bytes and arithmetic coding"
        )
