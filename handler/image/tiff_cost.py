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

from offpath.handler.errors import (
    ImageTooCostly,
    ImageTooLarge,
    UndecodableImage,
    UnsupportedFormat,
)
from offpath.handler.image.decode_cost import check_pixels
from offpath.handler.image.formats import Payload

# The most tags in a directory, and the most strips or tiles, or numbers in all other tags. Pillow
# makes Python objects of them: a million strips took two seconds, 2.5 million fractions eight. A
# large camera's image with one strip per row has 10,000 strips.
MAX_TAGS, MAX_VALUES = 1_000, 100_000
# 8-bit RGBA, and how much more the tiles may hold than the image's limit, for their margins.
MAX_BITS_PER_PIXEL, TILE_MARGIN = 32, 1.1
# TIFF 6.0, sections 8 and 15.
WIDTH, LENGTH, BITS, COMPRESSION, SAMPLES, ROWS, PLANES = (*(256, 257, 258, 259, 277, 278, 284),)
TILE_WIDTH, TILE_LENGTH = 322, 323
# Offsets and lengths of strips, then of tiles.
STRIPS, TILES = (273, 279), (324, 325)
# CCITT's three, LZW, deflate by two numbers, PackBits, LZMA and Zstandard. They cost what their
# pixels and bytes do; a JPEG inside a TIFF hides a cost of its own.
NO_COMPRESSION, COMPRESSIONS = 1, (1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000)
SEPARATE_PLANES = 2
# The directories that Pillow also reads: EXIF, GPS, and interoperability.
DIRECTORY_TAGS = (34665, 34853, 40965)
# Bytes per value: the types of TIFF 6.0, and IFD of Technical Note 1.
SIZES = dict(zip(range(1, 14), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4)))
# BYTE, ASCII and UNDEFINED hold profiles and thumbnails; Pillow keeps them as bytes.
PLAIN_TYPES = frozenset({1, 2, 7})
# SHORT, LONG and IFD: everything that sizes and offsets are written in.
UNSIGNED = {3: "u2", 4: "u4", 13: "u4"}
HEADERS = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0")
BIG_HEADERS = (b"II+\0", b"MM\0+")

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
        entry, is_forgiven = struct.Struct(f"{order}HHII"), at is not None
        # What Pillow may make Python objects of, without strips and tiles.
        self.other_values = 0
        try:
            if at is None:
                (at,) = struct.unpack_from(f"{order}I", payload, 4)
            (tags,) = struct.unpack_from(f"{order}H", payload, at)
            if tags > MAX_TAGS:
                raise ImageTooCostly(f"the TIFF has more than {MAX_TAGS} tags")
            for place in range(at + 2, at + 2 + tags * entry.size, entry.size):
                tag, kind, values, where = entry.unpack_from(payload, place)
                if not is_forgiven and (tag in self._tags or kind not in SIZES):
                    raise _ambiguous(tag)
                if kind not in PLAIN_TYPES and tag not in (*STRIPS, *TILES):
                    self.other_values += values
                is_inline = values * SIZES.get(kind, 1) <= 4
                self._tags.setdefault(tag, Tag(kind, values, place + 8 if is_inline else where))
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
        UnsupportedFormat: it is a BigTIFF, or has a rare compression.
        ImageTooLarge: the image or its tiles hold too many pixels or bits.
        ImageTooCostly: there are too many tags or values, or strips share their bytes.
        UndecodableImage: two decoders could read the tags differently.
    """
    if payload[:4] in BIG_HEADERS:
        raise UnsupportedFormat("BigTIFF is not accepted; send a TIFF")
    if payload[:4] not in HEADERS:
        return  # no TIFF
    tags = TiffTags(payload)
    others = [TiffTags(payload, at) for at in tags.directories()]
    others += [TiffTags(payload, at) for exif in others for at in exif.directories()]
    if sum(part.other_values for part in (tags, *others)) > MAX_VALUES:
        raise ImageTooCostly(f"the TIFF has more than {MAX_VALUES} values in its tags")
    compression = tags.number(COMPRESSION, NO_COMPRESSION)
    if compression not in COMPRESSIONS:
        raise UnsupportedFormat(
            f"the TIFF has the compression {compression}; send it with LZW or deflate, or as a JPEG"
        )
    width, height = tags.number(WIDTH, 0), tags.number(LENGTH, 0)
    tile_width, tile_height = tags.number(TILE_WIDTH, 0), tags.number(TILE_LENGTH, 0)
    check_pixels(height, width, max_pixels)
    check_pixels(tile_height, tile_width, max_pixels)
    offsets, lengths = _read_pieces(tags)
    if compression == NO_COMPRESSION or not width * height:
        return  # Pillow decodes it by itself, or not at all
    samples = tags.number(SAMPLES, 1)
    rows = min(height, tags.number(ROWS, height) or height)
    pixels, count = height * width, -(-height // rows)
    if tile_width or tile_height:
        count = -(-width // max(1, tile_width)) * -(-height // max(1, tile_height))
        pixels = max(pixels, int(count * tile_width * tile_height / TILE_MARGIN))
    count *= samples if tags.number(PLANES, 1) == SEPARATE_PLANES else 1
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
