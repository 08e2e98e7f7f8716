"""The fuzzers' first inputs: a small image in every format, and corpus/.

corpus/ holds small imitations of inputs that once failed, by their reader (corpus/README.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from offpath.serving.client import make_npy
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
    grey, palette, cmyk = rgb.convert("L"), rgb.quantize(16), rgb.convert("CMYK")
    rgba, bilevel = rgb.convert("RGBA"), rgb.convert("1")
    exif = rgb.getexif()
    exif[0x0112] = 6
    frames = [rgb.rotate(90), rgb.rotate(180)]
    compressions = (
        "tiff_lzw",
        "tiff_adobe_deflate",
        "packbits",
        "jpeg",
        "zstd",
        "lzma",
    )
    return [
        encode(rgb, "JPEG", exif=exif),
        encode(rgb, "JPEG", progressive=True),
        encode(grey, "JPEG", quality=20),
        encode(cmyk, "JPEG"),
        encode(rgb, "PNG"),
        encode(rgba, "PNG"),
        encode(palette, "PNG", transparency=3, exif=exif),
        encode(bilevel, "PNG"),
        encode(palette, "GIF", save_all=True, append_images=frames),
        encode(rgb, "WEBP"),
        encode(rgba, "WEBP", lossless=True),
        encode(rgb, "WEBP", save_all=True, append_images=frames, exif=exif),
        encode(rgb, "BMP"),
        encode(palette, "BMP"),
        encode(rgb, "TIFF"),
        encode(cmyk, "TIFF"),
        *(encode(rgb, "TIFF", compression=kind) for kind in compressions),
        *(encode(bilevel, "TIFF", compression=kind) for kind in ("group3", "group4")),
        make_npy(encode(rgb, "PNG")),
        *read_corpus("images").values(),
    ]
