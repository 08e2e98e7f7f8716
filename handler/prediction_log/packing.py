"""A segment at rest -> the object that is shipped, and back to lines.

The same segment gives the same bytes, whoever ships it. A killed process leaves complete lines and
perhaps one torn line at the end: the newline is the commit mark, a line without it was never handed
over completely, so its request was never answered. Lines that are no records (a power cut may leave
zeros) are set aside as well.
"""

from __future__ import annotations

import gzip
import logging

from offpath.handler.prediction_log.naming import SPOOL_SUFFIX, TORN_SUFFIX
from offpath.handler.prediction_log.segment import SealedSegment, read_own_file

LOGGER = logging.getLogger(__name__)

# Level 1: a third of level 6's CPU for about a tenth more bytes; the cores belong to inference.
GZIP_LEVEL = 1
ZSTD_LEVEL = 3

CONTENT_ENCODINGS = {"gzip": "gzip", "zstd": "zstd", "none": None}


def check_compression(name: str) -> None:
    """Fails early where a compression's library is missing.

    Raises:
        ValueError: zstd is asked for without the zstandard package.
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


def decompress(data: bytes, name: str) -> bytes:
    """The lines of an object of the log."""
    if name == "gzip":
        return gzip.decompress(data)
    if name == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def pack_segment(segment: SealedSegment) -> tuple[bytes, int]:
    """(object's bytes, records) of a segment; no bytes when it holds no complete record."""
    lines = read_segment(segment)
    if not lines:
        return b"", 0
    return compress(lines, segment.name.compression), lines.count(b"\n")


def read_segment(segment: SealedSegment) -> bytes:
    """The lines to ship; what an adopted segment holds beside them is copied to a .torn file.

    The segment itself stays as it is until it is delivered, so a crash in here changes nothing.
    """
    data = read_own_file(segment.path)
    if not segment.is_adopted:
        return data
    lines, torn = split_torn(data)
    if torn:
        _set_aside(segment, torn)
    return lines


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """(complete lines, everything else) of a segment's bytes."""
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
        # On a full disk the delivery must go on all the same: it is what makes room.
        LOGGER.warning("could not set aside %d torn bytes: %s", len(torn), error)
