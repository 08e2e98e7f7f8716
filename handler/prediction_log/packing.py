"""Turns a sealed segment into the object that is shipped, and an object back into lines.

The same segment always gives the same bytes. A killed process leaves complete lines and perhaps one
torn line at the end. The newline is the commit mark: a line without it was not written completely,
so its request was never answered. Lines that are not records (a power cut may leave zeros) are set
aside too.
"""

from __future__ import annotations

import gzip
import io
import logging
import zlib
from collections.abc import Iterator

from offpath.handler.prediction_log.segment import (
    MAX_OBJECT_BYTES,
    SPOOL_SUFFIX,
    TORN_SUFFIX,
    SealedSegment,
    read_own_file,
)

LOGGER = logging.getLogger(__name__)

# Level 1 takes a third of level 6's CPU for about a tenth more bytes; inference needs the cores.
GZIP_LEVEL = 1

# A record with 20,000 labels takes 1 MB; parsed JSON takes up to 25 times its text's memory.
MAX_RECORD_BYTES = 4 << 20


def compress(data: bytes) -> bytes:
    """Compresses a segment's lines; releases the GIL for nearly all of the work."""
    # mtime=0: the time of compression must not make two uploads of a segment differ.
    return gzip.compress(data, compresslevel=GZIP_LEVEL, mtime=0)


class DamagedObject(ValueError):
    """An object of the log that cannot be decompressed, or is larger than any of ours."""


def unpack_lines(data: bytes) -> Iterator[bytes]:
    """Yields the lines of an object of the log. Memory holds a single line.

    Raises:
        DamagedObject: the object is truncated, not compressed by gzip, or too large.
    """
    total = 0
    for line in _decompress(data):
        total += len(line)
        if len(line) > MAX_RECORD_BYTES:
            raise DamagedObject(f"a line has more than {MAX_RECORD_BYTES} bytes")
        if total > MAX_OBJECT_BYTES:
            raise DamagedObject(f"its lines have more than {MAX_OBJECT_BYTES} bytes")
        yield line.removesuffix(b"\n")


def _decompress(data: bytes) -> Iterator[bytes]:
    """Yields lines, and the beginning of a line that is too long."""
    file = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        while line := file.readline(MAX_RECORD_BYTES + 1):
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedObject(str(error)) from error


def pack_segment(segment: SealedSegment) -> tuple[bytes, int]:
    """Returns (bytes of the object, number of records); no bytes without a complete record."""
    lines = read_segment(segment)
    if not lines:
        return b"", 0
    return compress(lines), lines.count(b"\n")


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
    end = data.rfind(b"\n") + 1
    lines, torn = data[:end], data[end:]
    good, bad = bytearray(), bytearray()
    for line in io.BytesIO(lines):
        is_record = line.startswith(b"{") and line.endswith(b"}\n") and 0 not in line
        (good if is_record else bad).extend(line)
    if not bad:
        return lines, torn
    return bytes(good), bytes(bad) + torn


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
