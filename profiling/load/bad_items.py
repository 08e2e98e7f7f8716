"""Request bodies that no classifier can answer, each of which deserves a 4xx of its own."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np


def make_bad_items(photograph: bytes, seed: int) -> dict[str, bytes]:
    """Bodies by name.

    Args:
        photograph: a good JPEG, to be damaged.
        seed: of the random bytes.
    """
    rng = np.random.default_rng(seed)
    return {
        "empty": b"",
        "text": b"this is not a photograph\n" * 20,
        "truncated-jpeg": photograph[: len(photograph) // 3],
        "random-bytes": rng.bytes(20_000),
        "jpeg-header-then-random": photograph[:200] + rng.bytes(5_000),
        "pickled-npy": make_pickled_npy(),
        "npy-of-wrong-shape": make_npy(np.zeros((7, 5, 3), np.uint8)),
        "bomb": make_bomb_png(),
    }


def make_npy(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    """An array as an npy file, pickled where its dtype asks for it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def make_pickled_npy() -> bytes:
    """An npy file of Python objects: loading it would run a pickle."""
    return make_npy(np.array([{"not": "pixels"}], dtype=object))


def make_bomb_png(side: int = 60_000) -> bytes:
    """A PNG whose header promises side x side pixels (10.8 GB in RGB), in under 100 bytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
