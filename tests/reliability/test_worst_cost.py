"""CPU seconds of the most expensive requests known; docs/results.md has the largest."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from PIL import Image

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import decode_image
from offpath.handler.input_maker import silence_decoders
from offpath.handler.request.forms import FORM, MULTIPART, parse_body
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from offpath.handler.request.payload import read_payload
from tests.guarantees import guarantee
from tests.support.costly import (
    MAX_BYTES,
    RGBA,
    SIDE,
    bmp_of_runs,
    damaged_jpeg,
    gif_of_comments,
    make_tiff,
    measure,
    png,
    png_of_chunks,
    progressive_jpeg,
)
from tests.support.photographs import encode

CONFIG = HandlerConfig(exif_orientation=True)
# Twice what a host of full speed takes; those of the trials differ by two.
MAX_S = 4.0
# docs/security.md: memory to plan per decode thread.
MAX_MB = 1000
MAX_REQUEST_BYTES = 32 * 2**20


def encode_noise(format: str, mode: str = "RGB", **options: object) -> bytes:
    """Encodes enlarged noise of the most pixels that are accepted."""
    pixels = np.random.default_rng(0).integers(0, 255, (900, 900, 3), np.uint8)
    image = Image.fromarray(pixels).resize((SIDE, SIDE)).convert(mode)
    return encode(image, format, **options)


def noisy_jpeg() -> bytes:
    return encode_noise("JPEG", progressive=True, quality=40, subsampling=0)


def animated_webp() -> bytes:
    colours = (1, 2, 3, 4), (4, 3, 2, 1)
    first, second = (Image.new("RGBA", (SIDE, SIDE), colour) for colour in colours)
    return encode(first, "WEBP", save_all=True, append_images=[second], method=0)


def npy_of_parentheses() -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000


def multipart_of_names() -> bytes:
    part = b"--x\r\n" + b"content-disposition:" * 204 + b"\r\n\r\n\r\n"
    return part * 31 + b"--x--"


# By the format and the path through its decoder, or the limit, that makes it costly.
IMAGES: dict[str, Callable[[], bytes]] = {
    "JPEG | progressive": noisy_jpeg,
    "JPEG | scans": lambda: progressive_jpeg(SIDE, 3),
    "JPEG | CMYK": lambda: encode_noise("JPEG", "CMYK", quality=50),
    "JPEG | damaged": lambda: damaged_jpeg(noisy_jpeg()),
    "PNG | high": lambda: png(50, 1_000_000, 16, RGBA, 64, True),
    "PNG | chunks": lambda: png_of_chunks(MAX_BYTES // 12 - 20),
    "GIF | comments": lambda: gif_of_comments(MAX_BYTES // 3 - 10),
    "WEBP | lossy": lambda: encode_noise("WEBP", quality=60, method=0),
    "WEBP | animated": animated_webp,
    "BMP | runs": lambda: bmp_of_runs(7000, MAX_BYTES // 2 - 1000),
    "TIFF | lzma": lambda: encode(Image.new("RGBA", (SIDE, SIDE)), "TIFF", compression="lzma"),
    "TIFF | strips": lambda: make_tiff(
        bytes(500), compression=1, width=500, height=100_000, strips=100_000
    ),
    "npy | parentheses": npy_of_parentheses,
    "JSON and base64 | objects": lambda: b"[" + b"{}," * (11 * 2**20),
    "JSON and base64 | escapes": lambda: b'"' + b"\\u0041" * (5 * 2**20) + b'"',
}
# What costs most as it is; sent in every envelope too.
COSTLIEST = ("PNG | high", "GIF | comments", "WEBP | lossy", "BMP | runs")


def in_form(name: str) -> bytes:
    """Wraps an image in a form whose every byte is percent-encoded."""
    return b"data=%" + IMAGES[name]().hex("%").encode()


def in_json(name: str) -> bytes:
    """Wraps an image in JSON with base64."""
    return b'{"data": "' + base64.b64encode(IMAGES[name]()) + b'"}'


# The content type that the client names, and what makes the body. The last ones are envelopes that
# cost something themselves.
CASES: dict[str, tuple[str, Callable[[], bytes]]] = {
    **{name: ("", make) for name, make in IMAGES.items()},
    **{f"{name}, form": (FORM, partial(in_form, name)) for name in COSTLIEST},
    **{f"{name}, JSON with base64": ("", partial(in_json, name)) for name in COSTLIEST},
    "envelope | form of codes": (FORM, lambda: b"data=" + b"%41" * (2**25 // 3 - 2)),
    "envelope | form of JSON": (FORM, lambda: b"data=%22" + b"A" * (2**25 - 11) + b"%22"),
    "envelope | multipart of almost boundaries": (
        f"{MULTIPART}; boundary={'-' * 69}x",
        lambda: b"-" * 2**25,
    ),
    "envelope | multipart of names": (f"{MULTIPART}; boundary=x", multipart_of_names),
}
COSTS: list[float] = []

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    print("\n| format | request | bytes | CPU s | MB | answer |\n|---|---|---|---|---|---|")
    yield
    print(f"\nthe costliest: {max(COSTS, default=0):.2f} s of CPU")


@guarantee("Costly images")
@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("case", CASES)
def test_no_request_takes_longer_than_expected(case: str) -> None:
    content_type, make = CASES[case]
    body = make()
    if len(body) > MAX_REQUEST_BYTES:
        pytest.skip("the server refuses this length")
    silence_decoders()
    cost = measure(partial(decode, body, content_type))
    COSTS.append(cost.cpu_s)
    # A row of the table in docs/results.md.
    print(f"\n| {case} | {len(body):,} | {cost.cpu_s:.2f} | {cost.memory_mb} | {cost.answer} |")
    assert cost.cpu_s <= MAX_S and "BUG" not in cost.answer
    assert cost.answer != "the process ended" and cost.memory_mb <= MAX_MB


def decode(received: bytes, content_type: str) -> None:
    """Reads and decodes a request as a worker does."""
    body = parse_body(bytearray(received), content_type)
    payload = read_payload(body, CONFIG.max_payload_bytes)
    if payload[:6] == NPY_MAGIC:
        read_npy(payload, CONFIG.input_geometry.shape)
    else:
        decode_image(payload, CONFIG.decode_options)
