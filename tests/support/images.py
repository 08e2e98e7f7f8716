"""Good and bad request bodies, made from real photographs once per process."""

from __future__ import annotations

import io
import pickle
import random
import zlib
from functools import cache

import numpy as np

from offpath.serving.client import make_npy
from tests.support.costly import make_png
from tests.support.photographs import PHOTOGRAPHS, encode

COFFEE = next(p for p in PHOTOGRAPHS if p.name.startswith("coffee"))


@cache
def jpeg(name: str = "coffee", size: tuple[int, int] | None = None) -> bytes:
    """Encodes a photograph as JPEG, resized to `size` if given."""
    photo = next(p for p in PHOTOGRAPHS if p.name.startswith(name))
    image = photo.image.convert("RGB")
    return encode(image.resize(size) if size else image, "JPEG", quality=90)


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    """Encodes an array as npy bytes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


@cache
def accepted() -> dict[str, bytes]:
    """Encodes one photograph in every accepted format and mode."""
    rgb = COFFEE.image.convert("RGB")
    grey16 = np.asarray(rgb.convert("L")).astype(np.uint16) * 257
    from PIL import Image

    return {
        "jpeg": encode(rgb, "JPEG", quality=90),
        "progressive": encode(rgb, "JPEG", quality=90, progressive=True),
        "grey jpeg": encode(rgb.convert("L"), "JPEG"),
        "cmyk jpeg": encode(rgb.convert("CMYK"), "JPEG"),
        "png": encode(rgb, "PNG"),
        "palette png": encode(rgb.convert("P"), "PNG"),
        "rgba png": encode(rgb.convert("RGBA"), "PNG"),
        "16-bit png": encode(Image.fromarray(grey16), "PNG"),
        "webp": encode(rgb, "WEBP"),
        "gif": encode(rgb.convert("P"), "GIF"),
        "bmp": encode(rgb, "BMP"),
        "tiff": encode(rgb, "TIFF"),
        "npy": make_npy(encode(rgb, "PNG")),
    }


def noise(size: int) -> bytes:
    """Returns random bytes that are the same each time."""
    return random.Random(0).randbytes(size)


# name -> (body, status, type)
@cache
def rejected() -> dict[str, tuple[bytes, int, str]]:
    """Returns every kind of bad item with the answer it must get."""
    good = jpeg()
    return {
        "empty": (b"", 400, "EmptyPayload"),
        "not an image": (b"hello, world: no image here", 415, "UnsupportedFormat"),
        "truncated jpeg": (good[: len(good) // 2], 422, "UndecodableImage"),
        "jpeg's head, then noise": (good[:700] + noise(5000), 422, "UndecodableImage"),
        "noise": (noise(20_000), 415, "UnsupportedFormat"),
        "npy of another shape": (
            npy(np.zeros((100, 100, 3), np.uint8)),
            422,
            "BadTensor",
        ),
        "npy of another dtype": (
            npy(np.zeros((224, 224, 3), np.float32)),
            422,
            "BadTensor",
        ),
        "pickled npy": (
            npy(np.array([{"a": 1}], dtype=object), allow_pickle=True),
            422,
            "BadTensor",
        ),
        "pickle": (pickle.dumps({"a": 1}), 415, "UnsupportedFormat"),
        "decompression bomb": (
            make_png(60_000, 60_000, zlib.compress(bytes(1000))),
            413,
            "ImageTooLarge",
        ),
        "over the byte limit": (good + bytes(21 * 2**20), 413, "PayloadTooLarge"),
        "broken json": (b'{"data": ', 400, "BadEnvelope"),
    }
