"""Bounds the cost of an image: by its markers before decoding, or by a time budget during it.

A few hundred kilobytes can keep a decoder busy for minutes: thousands of JPEG scans over the same
pixels, megabytes of fill bytes, a million empty PNG chunks, a BMP in runs of one pixel.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from offpath.handler.contract import LEFT
from offpath.handler.errors import ImageTooCostly, ImageTooLarge, ItemError, UnsupportedFormat
from offpath.handler.image.formats import Payload

# CPU seconds that Pillow may take for one image: twice the need of 50 million 16-bit RGBA pixels.
BUDGET_S = 1.5
# Pillow takes 24 bytes per row besides the pixels: 1 x 50,000,000 px would be a gigabyte.
MAX_SIDE = 1_000_000
# Memory for the images that this process decodes at a time, and the size below which none is held.
MAX_DECODING_BYTES, SMALL_BYTES = 1 << 30, 16 << 20
# The most that Pillow takes for a pixel: all frames of a WebP share two canvases and three copies.
PILLOW_BYTES = 20
# A JPEG's coefficients, which all scans but the only one need, at full size whatever the scale.
COEFFICIENT_BYTES = 6
# An encoder makes about ten scans of a progressive image, and each goes over all pixels again
# (1.5 ns per pixel of three components). Ten scans of 50 million pixels stay within the limit.
MAX_SCANS = 100
MAX_SCANNED_PIXELS = 700_000_000
# Limits on segments, and on bytes outside any segment, before the first scan. A camera's profiles
# and previews take some hundred segments; one segment holds at most 64 kB.
MAX_SEGMENTS = 1_000
MAX_STRAY_BYTES = 65_536
# Predicted CPU seconds per pixel: of libjpeg-turbo for each scan and once for the colours, and of
# Pillow, which takes from 5 ns (BMP) to 50 (PNG).
SCAN_S, PILLOW_S = 1.5e-9, 30e-9
# An image is costly if its predicted seconds are more than this and this many times the median.
COSTLY_S, COSTLY_TIMES = 0.1, 4
# Share by which one image moves the median, up or down.
MEDIAN_STEP = 0.05
# JPEG markers (ITU-T T.81, table B.1).
FILL, START_OF_SCAN, END_OF_IMAGE = 0xFF, 0xDA, 0xD9
QUANTISATION_TABLES = 0xDB
# SOF0 to SOF15, without DHT, JPG and DAC in between.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended and progressive, as cameras and browsers write them. Others are lossless, for
# which libjpeg-turbo would write past simplejpeg's buffer, or coded arithmetically, which costs up
# to eight times as much.
COMMON, PROGRESSIVE = frozenset({0xC0, 0xC1, 0xC2}), 0xC2
# TEM and RST0 to RST7, which no length follows.
STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
APP1, EXIF = 0xE1, b"Exif\0\0"
# Pillow joins several segments of up to 64 kB and parses them in Python.
MAX_EXIF_BYTES = 262_144


class Frame(NamedTuple):
    """A JPEG's properties by the markers before its first scan.

    Attributes:
        pixels: height x width.
        scans: 1 if the first scan holds the whole image; 0 for several that nobody counted.
        has_tables: quantisation tables come before the first scan.
        kind: the marker that began the frame.
        bits: bits per sample.
    """

    pixels: int
    scans: int
    has_tables: bool
    kind: int
    bits: int

    @property
    def predicted_s(self) -> float:
        """CPU seconds of decoding, by pixels and scans."""
        return SCAN_S * self.pixels * (1 + self.scans)


class ImageLeft(ItemError):
    """The image is costly, so it must be read apart; no client sees this."""

    status = LEFT


class UsualCost:
    """Follows the median of predicted costs, and tells which images cost much more.

    An archive whose images are all large has no costly ones. One step per image, up or down, finds
    the median without a list, and a few costly images hardly move it.
    """

    def __init__(self) -> None:
        self._median_s = 0.0

    def check(self, predicted_s: float) -> None:
        """Raises ImageLeft for a costly image."""
        median_s = self._median_s or predicted_s
        step = 1 + MEDIAN_STEP
        self._median_s = median_s * step if predicted_s > median_s else median_s / step
        if predicted_s > max(COSTLY_S, COSTLY_TIMES * median_s):
            raise ImageLeft("the image takes long to decode")


class BudgetedBytes(io.BytesIO):
    """An image that stops being readable when the decoding thread has used its CPU budget.

    Pillow reads an image piece by piece, so this ends the decoding. `spent_s` is a part of the
    budget that is used already.

    Raises:
        ImageTooCostly: from `read`, after the budget is used.
    """

    def __init__(self, payload: Payload, spent_s: float = 0.0) -> None:
        super().__init__(payload)
        self._end_s = time.thread_time() + BUDGET_S - spent_s

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._end_s:
            raise ImageTooCostly("the image takes too long to decode")
        return super().read(size)


class DecodeMemory:
    """Holds memory for an image before it is decoded, so that few large ones are decoded at once.

    A single image always fits.
    """

    def __init__(self) -> None:
        self._changed, self._held = threading.Condition(), 0

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Waits until there is room for `size` bytes."""
        if size < SMALL_BYTES:
            yield
            return
        with self._changed:
            self._changed.wait_for(
                lambda: not self._held or self._held + size <= MAX_DECODING_BYTES
            )
            self._held += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()


MEMORY = DecodeMemory()


def check_jpeg_cost(payload: Payload) -> Frame | None:
    """Refuses a JPEG of a rare kind, or with too many scans, segments or fill bytes.

    Reads the markers before the first scan, a few kilobytes. Only an image of several scans is
    searched as a whole (0.3 ms per megabyte).

    Returns:
        the frame; None for a broken file or one without pixels, which the decoder refuses at once.

    Raises:
        UnsupportedFormat: it is lossless, coded arithmetically, or has not 8 bits.
        ImageTooCostly: the image exceeds a limit.
    """
    frame = find_frame(payload)
    if frame is None:
        return None
    if frame.kind not in COMMON or frame.bits != 8:
        raise UnsupportedFormat(
            f"the JPEG is lossless, hierarchical or coded arithmetically, or has {frame.bits} bits "
            "per sample; send a baseline or progressive one with 8"
        )
    if frame.scans:
        return frame
    # Their markers; inside a scan's data the byte after 0xFF is never one.
    data = np.frombuffer(payload, np.uint8)
    scans = int((data[1:][data[:-1] == FILL] == START_OF_SCAN).sum())
    if scans * frame.pixels > MAX_SCANNED_PIXELS:
        raise ImageTooCostly(f"the JPEG's scans cover more than {MAX_SCANNED_PIXELS} pixels in all")
    if scans > MAX_SCANS:
        raise ImageTooCostly(f"the JPEG has more than {MAX_SCANS} scans")
    return frame._replace(scans=scans)


def find_frame(payload: Payload) -> Frame | None:
    """Reads a JPEG's frame; None without a frame or without a scan.

    Raises:
        ImageTooCostly: too many segments or stray bytes come before the first scan.
    """
    at, end, segments, stray, exif = 2, len(payload), 0, 0, 0
    pixels = components = kind = bits = 0
    has_tables = False
    while at + 4 <= end:
        if segments > MAX_SEGMENTS or stray > MAX_STRAY_BYTES or exif > MAX_EXIF_BYTES:
            raise ImageTooCostly("the JPEG has too much data before its first scan")
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
            scans = int(is_whole and kind != PROGRESSIVE)
            return Frame(pixels, scans, has_tables, kind, bits) if pixels else None
        if marker in FRAMES and at + 8 <= end:
            height, width = (read_short(payload, at + n) for n in (3, 5))
            pixels, components = height * width, payload[at + 7]
            kind, bits = marker, payload[at + 2]
        has_tables |= marker == QUANTISATION_TABLES
        if marker == APP1 and payload[at + 2 : at + 8] == EXIF:
            exif += read_short(payload, at)
        at += max(2, read_short(payload, at))
    return None


def read_short(payload: Payload, at: int) -> int:
    return payload[at] << 8 | payload[at + 1]


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    if max(height, width) > MAX_SIDE:
        raise ImageTooLarge(
            f"the image has {width} x {height} pixels; at most {MAX_SIDE} per side are accepted"
        )
    if height * width > max_pixels:
        raise ImageTooLarge(
            f"the image has {width} x {height} pixels; at most {max_pixels} are accepted"
        )
