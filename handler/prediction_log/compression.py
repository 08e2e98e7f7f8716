"""Deterministic compression: the same segment gives the same bytes, whoever ships it."""

from __future__ import annotations

import gzip

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
