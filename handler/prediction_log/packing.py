"""Turns a sealed segment into the object that is shipped, and an object back into lines.

The same segment always gives the same bytes. A killed process leaves complete lines and perhaps one
torn line at the end. The newline is the commit mark: a line without it was not written completely,
so its request was never answered. Lines that are not records (a power cut may leave zeros) are set
aside too.
"""

from __future__ import annotations

import gzip
import logging
import zlib

from offpath.handler.prediction_log.segment import (
    SPOOL_SUFFIX,
    TORN_SUFFIX,
    SealedSegment,
    read_own_file,
)

LOGGER = logging.getLogger(__name__)

# Level 1 takes a third of level 6's CPU for about a tenth more bytes; inference needs the cores.
GZIP_LEVEL = 1
ZSTD_LEVEL = 3

CONTENT_ENCODINGS = {"gzip": "gzip", "zstd": "zstd", "none": None}


def check_compression(name: str) -> None:
    """Checks that the library of a compression is installed.

    Raises:
        ValueError: The settings ask for zstd without the package zstandard.
    """
    if name != "zstd":
        return
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "prediction_log.compression is 'zstd' and the package zstandard is missing: "
            "install it or use gzip"
        ) from error


def compress(data: bytes, name: str) -> bytes:
    """Compresses a segment's lines; releases the GIL for nearly all of the work."""
    if name == "gzip":
        # mtime=0: the time of compression must not make two uploads of a segment differ.
        return gzip.compress(data, compresslevel=GZIP_LEVEL, mtime=0)
    if name == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return data


class DamagedObject(ValueError):
    """An object of the log that cannot be decompressed."""


def decompress(data: bytes, name: str) -> bytes:
    """Returns the lines of an object of the log.

    Raises:
        DamagedObject: the object is truncated or not compressed as its name says.
    """
    if name == "gzip":
        try:
            return gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedObject(str(error)) from error
    if name == "zstd":
        import zstandard

        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            lines = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise DamagedObject(str(error)) from error
        # A truncated frame is no error to the library.
        if not frame.eof:
            raise DamagedObject("the zstd frame is truncated")
        return lines
    return data


def pack_segment(segment: SealedSegment) -> tuple[bytes, int]:
    """Returns (bytes of the object, number of records); no bytes without a complete record."""
    lines = read_segment(segment)
    if not lines:
        return b"", 0
    return compress(lines, segment.name.compression), lines.count(b"\n")


def read_segment(segment: SealedSegment) -> bytes:
    """Returns the lines to ship; torn data of an adopted segment is copied to a .torn file.

    The segment stays unchanged until it is delivered, so a crash in between loses nothing.
    """
    data = read_own_file(segment.path)
    if not segment.is_adopted:
        return data
    lines, torn = split_torn(data)
    if torn:
        _set_aside(segment, torn)
    return lines


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """Splits a segment's bytes into (complete lines, everything else)."""
    end = data.rfind(b"\n") + 1
    lines, torn = data[:end], data[end:]
    good: list[bytes] = []
    bad: list[bytes] = []
    for line in lines.splitlines(keepends=True):
        is_record = line.startswith(b"{") and line.endswith(b"}\n") and 0 not in line
        (good if is_record else bad).append(line)
    if not bad:
        return lines, torn
    return b"".join(good), b"".join(bad) + torn


def _set_aside(segment: SealedSegment, torn: bytes) -> None:
    base = segment.path.name.removesuffix(SPOOL_SUFFIX)
    sink_folder = segment.path.parent.parent
    path = sink_folder / f"{segment.name.owner}-{base}{TORN_SUFFIX}"
    try:
        path.write_bytes(torn)
    except OSError as error:
        # On a full disk the delivery must continue, because it makes room.
        LOGGER.warning(
            "prediction log: %d torn bytes of %r could not be set aside: %s",
            len(torn),
            str(segment.path),
            error,
        )
