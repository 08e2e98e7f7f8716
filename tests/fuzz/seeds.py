"""The fuzzers' first inputs: a small image in every format, and corpus/; and how they are changed.

corpus/ holds small imitations of inputs that once failed, by their reader (corpus/README.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from offpath.serving.client import make_npy
from tests.support.images import encode_variants
from tests.support.photographs import encode

CORPUS = Path(__file__).with_name("corpus")
SIZE = (40, 30)


def read_corpus(group: str) -> dict[str, bytes]:
    """Returns the files of a folder of the corpus by name."""
    files = sorted((CORPUS / group).glob("*.bin"))
    return {file.stem: file.read_bytes() for file in files}


def image() -> Image.Image:
    """Makes noise that can be compressed."""
    pixels = np.random.default_rng(0).integers(0, 255, (*SIZE[::-1], 3), np.uint8)
    pixels[10:20] = 128
    return Image.fromarray(pixels)


def make_seeds() -> list[bytes]:
    """Makes files of every accepted format, with many variants."""
    rgb = image()
    compressions = ("tiff_adobe_deflate", "packbits", "zstd", "lzma")
    return [
        *encode_variants(rgb).values(),
        *(encode(rgb, "TIFF", compression=kind) for kind in compressions),
        *(encode(rgb.convert("1"), "TIFF", compression=kind) for kind in ("group3", "group4")),
        make_npy(encode(rgb, "PNG")),
        *read_corpus("images").values(),
    ]


class Change(NamedTuple):
    """A change of a file: at a share of its length, some bytes are replaced by others."""

    at: float
    bytes: bytes
    replaced: int


# Shares are squared below, because most of a file's structure is near its beginning.
CHANGES = st.lists(
    st.builds(
        Change,
        at=st.floats(0, 1),
        bytes=st.one_of(
            st.binary(max_size=8),
            st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xff\xda"]),
        ),
        replaced=st.integers(0, 8),
    ),
    min_size=1,
    max_size=6,
)


def change(file: bytes, changes: list[Change]) -> bytes:
    changed = bytearray(file)
    for at, new, replaced in changes:
        begin = int(at * at * len(changed))
        changed[begin : begin + replaced] = new
    return bytes(changed)
