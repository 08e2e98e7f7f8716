"""Good and bad request bodies, made from real photographs once per process."""

from __future__ import annotations

import io
import pickle
import random
import zlib
from functools import cache

import numpy as np
from PIL import Image

from offpath.serving.client import make_npy
from tests.support.costly import make_png
from tests.support.photographs import encode, find_photograph


@cache
def jpeg(name: str = "coffee", size: tuple[int, int] | None = None) -> bytes:
    """Encodes a photograph as JPEG, resized to `size` if given."""
    image = find_photograph(name).rgb
    return encode(image.resize(size) if size else image, "JPEG", quality=90)


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    """Encodes an array as npy bytes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def encode_variants(rgb: Image.Image) -> dict[str, bytes]:
    """Encodes an image in every accepted format and many of their variants."""
    grey = rgb.convert("L")
    rgba = rgb.copy()
    rgba.putalpha(grey)
    palette = rgb.quantize(64)
    exif = rgb.getexif()
    exif[0x0112] = 6
    # Unequal bytes, so that their order matters.
    wide = grey.point(lambda v: v * 256 + 7, "I")
    grey_16_bit, big_endian = wide.convert("I;16"), wide.convert("I;16B")
    tall = [rgb, rgb.rotate(180)]
    return {
        "jpeg": encode(rgb, "JPEG", quality=90),
        "jpeg-progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg-444": encode(rgb, "JPEG", subsampling=0),
        "jpeg-grey": encode(grey, "JPEG"),
        "jpeg-cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "jpeg-exif": encode(rgb, "JPEG", exif=exif),
        "png": encode(rgb, "PNG"),
        "png-grey": encode(grey, "PNG"),
        "png-bilevel": encode(rgb.convert("1"), "PNG"),
        "png-rgba": encode(rgba, "PNG"),
        "png-la": encode(rgba.convert("LA"), "PNG"),
        "png-palette": encode(palette, "PNG"),
        "png-palette-transparent": encode(palette, "PNG", transparency=3),
        "png-16bit": encode(grey_16_bit, "PNG"),
        "webp": encode(rgb, "WEBP", quality=80),
        "webp-lossless": encode(rgb, "WEBP", lossless=True),
        "webp-rgba": encode(rgba, "WEBP"),
        "webp-animated": encode(rgb, "WEBP", save_all=True, append_images=tall),
        "gif": encode(palette, "GIF"),
        "gif-animated": encode(rgb, "GIF", save_all=True, append_images=tall),
        "bmp": encode(rgb, "BMP"),
        "bmp-palette": encode(palette, "BMP"),
        "tiff": encode(rgb, "TIFF"),
        "tiff-lzw": encode(rgb, "TIFF", compression="tiff_lzw"),
        "tiff-cmyk": encode(rgb.convert("CMYK"), "TIFF"),
        "tiff-16bit": encode(grey_16_bit, "TIFF"),
        "tiff-16bit-big-endian": encode(big_endian, "TIFF"),
    }


# Variants in which the photograph of an espresso is still one to the model.
FAITHFUL = "jpeg jpeg-progressive jpeg-grey jpeg-cmyk png png-palette png-rgba png-16bit".split()
FAITHFUL += "webp gif bmp tiff".split()


@cache
def accepted() -> dict[str, bytes]:
    """Encodes one photograph in every accepted format and the usual modes."""
    variants = encode_variants(find_photograph("coffee").rgb)
    npy = {"npy": make_npy(variants["png"])}
    return {name: variants[name] for name in FAITHFUL} | npy


# name -> (body, status, type)
@cache
def rejected() -> dict[str, tuple[bytes, int, str]]:
    """Returns every kind of bad item with the answer it must get."""
    good, packed = jpeg(), zlib.compress(bytes(1000))
    return {
        "empty": (b"", 400, "EmptyPayload"),
        "not an image": (b"hello, world: no image here", 415, "UnsupportedFormat"),
        "truncated jpeg": (good[: len(good) // 2], 422, "UndecodableImage"),
        "noise": (random.Random(0).randbytes(20_000), 415, "UnsupportedFormat"),
        "npy of another shape": (npy(np.zeros((100, 100, 3), np.uint8)), 422, "BadTensor"),
        "pickled npy": (npy(np.array([{}], dtype=object), allow_pickle=True), 422, "BadTensor"),
        "pickle": (pickle.dumps({"a": 1}), 415, "UnsupportedFormat"),
        "decompression bomb": (make_png(60_000, 60_000, packed), 413, "ImageTooLarge"),
        "over the byte limit": (good + bytes(21 * 2**20), 413, "PayloadTooLarge"),
        "broken json": (b'{"data": ', 400, "BadEnvelope"),
    }
