"""What a picture may cost: bounded by what its markers say, before decoding, or ended on the way.

A few hundred kilobytes can hold a decoder for minutes: thousands of JPEG scans over the same
pixels, megabytes of fill bytes, a million empty PNG chunks, a BMP in runs of one pixel.
"""

from __future__ import annotations

import contextlib
import io
import struct
import time
from typing import NamedTuple

import numpy as np

from offpath.handler.errors import ImageTooCostly
from offpath.handler.request.payload import Payload

# CPU seconds that Pillow may take for one picture: twice what 50 million 16-bit RGBA pixels need.
BUDGET_S = 1.5
# An encoder makes about ten scans of a progressive picture; each goes over all pixels again
# (1.5 ns a pixel in three components here). Ten scans of 50 million pixels are within it.
MAX_SCANS = 100
MAX_SCANNED_PIXELS = 700_000_000
# Segments, and bytes that belong to none, before the first scan. Profiles and previews of a camera
# take some hundred segments; 64 kB is the most that one holds.
MAX_SEGMENTS = 1_000
MAX_STRAY_BYTES = 65_536
# JPEG markers (ITU-T T.81, table B.1).
FILL, START_OF_SCAN, END_OF_IMAGE = 0xFF, 0xDA, 0xD9
QUANTISATION_TABLES = 0xDB
# SOF0 to SOF15 without DHT, JPG and DAC, which lie between them.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# TEM and RST0 to RST7: no length follows.
STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
APP1, EXIF = 0xE1, b"Exif\0\0"
# One segment holds 64 kB; Pillow puts several together, and parses what it wants of them in Python.
MAX_EXIF_BYTES = 262_144
# Values of one TIFF tag that Pillow makes Python objects of: a million strips take two seconds
# before anything is decoded. A strip a row of the largest camera's picture is a tenth of this.
MAX_TAG_VALUES = 100_000
# TIFF's types BYTE, ASCII and UNDEFINED: taken as they are, as profiles and thumbnails come.
PLAIN_TYPES = frozenset({1, 2, 7})
MAX_TAGS = 65_535


class Frame(NamedTuple):
    """What a JPEG's markers say before its first scan.

    Attributes:
        pixels: height x width.
        is_one_scan: the first scan holds everything.
        has_tables: quantisation tables come before it.
    """

    pixels: int
    is_one_scan: bool
    has_tables: bool


class BudgetedBytes(io.BytesIO):
    """A picture for Pillow, which reads it piece by piece: it ends where the budget does.

    Raises:
        ImageTooCostly: from `read`, once the thread has used the budget.
    """

    def __init__(self, payload: Payload, budget_s: float = BUDGET_S) -> None:
        super().__init__(payload)
        self._end_s = time.thread_time() + budget_s

    def read(self, size: int | None = -1, /) -> bytes:
        """As BytesIO's."""
        if time.thread_time() > self._end_s:
            raise ImageTooCostly("the picture takes too long to decode")
        return super().read(size)


def check_jpeg_cost(payload: Payload) -> Frame | None:
    """Refuses a JPEG whose scans, segments or fill bytes cost more than a picture's should.

    Reads the markers before the first scan, a few kilobytes; only a picture of several scans is
    looked through as a whole (0.3 ms a megabyte).

    Returns:
        what those markers say; None for what is broken, or without pixels: the decoder says so
        at once.

    Raises:
        ImageTooCostly: it does.
    """
    frame = find_frame(payload)
    if frame is None or frame.is_one_scan:
        return frame
    if check_scans(payload, frame.pixels) > MAX_SCANS:
        raise ImageTooCostly(f"more than {MAX_SCANS} scans")
    return frame


def check_scans(payload: Payload, pixels: int) -> int:
    """How many scans there are.

    Raises:
        ImageTooCostly: all together they go over too many pixels.
    """
    scans = count_scans(payload)
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise ImageTooCostly(f"more than {MAX_SCANNED_PIXELS} pixels in all scans")
    return scans


def find_frame(payload: Payload) -> Frame | None:
    """A JPEG's frame; None without one, or without a scan.

    Raises:
        ImageTooCostly: too many segments or stray bytes.
    """
    at, end, segments, stray, exif = 2, len(payload), 0, 0, 0
    pixels = components = 0
    is_progressive = has_tables = False
    while at + 4 <= end:
        if segments > MAX_SEGMENTS or stray > MAX_STRAY_BYTES or exif > MAX_EXIF_BYTES:
            raise ImageTooCostly("too much before the first scan")
        marker = payload[at + 1]
        if payload[at] != FILL or marker in (0x00, FILL):
            at, stray = at + 1, stray + 1
            continue
        at, segments = at + 2, segments + 1
        if marker in STANDALONE:
            continue
        if marker == END_OF_IMAGE:
            return None
        if marker == START_OF_SCAN:
            is_whole = at + 2 < end and payload[at + 2] == components
            is_one_scan = is_whole and not is_progressive
            return Frame(pixels, is_one_scan, has_tables) if pixels else None
        if marker in FRAMES and at + 8 <= end:
            height, width = (read_short(payload, at + n) for n in (3, 5))
            pixels, components = height * width, payload[at + 7]
            is_progressive = marker in PROGRESSIVE
        has_tables |= marker == QUANTISATION_TABLES
        if marker == APP1 and payload[at + 2 : at + 8] == EXIF:
            exif += read_short(payload, at)
        at += max(2, read_short(payload, at))
    return None


def read_short(payload: Payload, at: int) -> int:
    """Two bytes, big endian."""
    return payload[at] << 8 | payload[at + 1]


def count_scans(payload: Payload) -> int:
    """Scan markers anywhere; within a scan's data the byte after 0xFF is never one."""
    data = np.frombuffer(payload, np.uint8)
    after = data[1:][data[:-1] == FILL]
    return int(np.count_nonzero(after == START_OF_SCAN))


def check_tiff_cost(payload: Payload) -> None:
    """Refuses a TIFF one of whose tags holds more numbers than a picture's.

    Raises:
        ImageTooCostly: it does.
    """
    order = "<" if payload[:2] == b"II" else ">"
    is_big = payload[2:3] == b"\x2b"  # BigTIFF, as Pillow tells it
    offset_at, offset, count, entry = (
        (8, "Q", "Q", "HHQQ") if is_big else (4, "I", "H", "HHII")
    )
    layout = struct.Struct(order + entry)
    with contextlib.suppress(struct.error):  # cut off: Pillow says so
        (at,) = struct.unpack_from(order + offset, payload, offset_at)
        (tags,) = struct.unpack_from(order + count, payload, at)
        at += struct.calcsize(count)
        for number in range(min(tags, MAX_TAGS)):
            _, kind, values, _ = layout.unpack_from(payload, at + number * layout.size)
            if kind not in PLAIN_TYPES and values > MAX_TAG_VALUES:
                raise ImageTooCostly(f"more than {MAX_TAG_VALUES} values of one tag")
