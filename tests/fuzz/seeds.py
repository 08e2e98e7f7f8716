"""The fuzzers' first inputs: a small image in every format, and corpus/.

corpus/ holds small imitations of inputs that once failed, by their reader (corpus/README.md).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from offpath.serving.client import make_npy
from tests.support.costly import save

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
        save(rgb, "JPEG", exif=exif),
        save(rgb, "JPEG", progressive=True),
        save(grey, "JPEG", quality=20),
        save(cmyk, "JPEG"),
        save(rgb, "PNG"),
        save(rgba, "PNG"),
        save(palette, "PNG", transparency=3, exif=exif),
        save(bilevel, "PNG"),
        save(palette, "GIF", save_all=True, append_images=frames),
        save(rgb, "WEBP"),
        save(rgba, "WEBP", lossless=True),
        save(rgb, "WEBP", save_all=True, append_images=frames, exif=exif),
        save(rgb, "BMP"),
        save(palette, "BMP"),
        save(rgb, "TIFF"),
        save(cmyk, "TIFF"),
        *(save(rgb, "TIFF", compression=kind) for kind in compressions),
        *(save(bilevel, "TIFF", compression=kind) for kind in ("group3", "group4")),
        make_npy(save(rgb, "PNG")),
        *read_corpus("images").values(),
    ]
