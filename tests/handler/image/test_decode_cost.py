from __future__ import annotations

import contextlib
import itertools
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ImageTooCostly, ImageTooLarge, UnsupportedFormat
from offpath.handler.image import decode_cost
from offpath.handler.image.decode import DecodeOptions, decode_image
from offpath.handler.image.decode_cost import BUDGET_S, ImageLeft, UsualCost
from tests.guarantees import guarantee
from tests.support.costly import (
    bmp_of_runs,
    damaged_jpeg,
    gif_of_comments,
    make_tiff,
    png_of_chunks,
    progressive_jpeg,
    tiff_of_tags,
)
from tests.support.eventually import eventually
from tests.support.photographs import encode

MAX_BYTES = HandlerConfig().max_payload_bytes
OPTIONS = DecodeOptions(min_size=384, exif_orientation=True)
# The marker of the frame that all decoders know.
BASELINE = b"\xff\xc0"
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (600, 800, 3), dtype=np.uint8))


def jpeg_of_exif() -> bytes:
    """Makes a CMYK image, for Pillow, whose EXIF has a resolution of two million fractions."""
    jpeg = encode(Image.new("CMYK", (64, 64)), "JPEG")
    tags = tiff_of_tags([(0x0128, 3, [2]), (0x011A, 5, b"\1\0\0\0" * 4_000_000)], 8)
    exif = b"II*\0\x08\0\0\0" + tags
    pieces = [exif[at : at + 65_000] for at in range(0, len(exif), 65_000)]
    segments = b"".join(
        b"\xff\xe1" + struct.pack(">H", len(piece) + 8) + b"Exif\0\0" + piece for piece in pieces
    )
    return jpeg[:2] + segments + jpeg[2:]


def deflated_after_nothing() -> bytes:
    """Deflates zeros after two million empty blocks of five bytes each."""
    return b"\x78\x01" + b"\0\0\0\xff\xff" * 2_000_000 + zlib.compress(bytes(100))[2:]


def with_bits(jpeg: bytes, bits: int) -> bytes:
    """Makes the header of a baseline JPEG claim samples of so many bits."""
    at = jpeg.index(BASELINE) + 4
    return jpeg[:at] + bytes([bits]) + jpeg[at + 1 :]


def with_costly_orientation(format: str) -> bytes:
    """Encodes an image whose orientation is a million fractions."""
    tags = tiff_of_tags([(0x0112, 5, b"\1\0\0\0" * 2_000_000)], 8)
    return encode(NOISE, format, exif=b"II*\0\x08\0\0\0" + tags)


@guarantee("Costly images")
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(partial(with_costly_orientation, format), id=f"orientation-of-a-{format}")
            for format in ("PNG", "WEBP")
        ),
        pytest.param(lambda: progressive_jpeg(1000, 16_000), id="scans"),
        pytest.param(lambda: progressive_jpeg(5000, 50), id="scans-of-many-pixels"),
        pytest.param(lambda: b"\xff\xd8" + b"\xff" * (MAX_BYTES - 2), id="fill-bytes"),
        pytest.param(
            lambda: b"\xff\xd8\xff" + b"\xdb\x00\x02\xff" * (MAX_BYTES // 4 - 1),
            id="segments",
        ),
        pytest.param(jpeg_of_exif, id="exif-of-megabytes"),
        pytest.param(
            lambda: make_tiff(bytes(50), compression=1, width=50, height=10**6, strips=10**6),
            id="tiff-of-a-million-strips",
        ),
        pytest.param(
            lambda: make_tiff(deflated_after_nothing(), height=1000, strips=1000),
            id="tiff-strips-of-the-same-bytes",
        ),
    ],
)
def test_cost_visible_in_markers_is_refused_at_once(make: Callable[[], bytes]) -> None:
    body = bytearray(make())
    assert len(body) <= MAX_BYTES
    begin_s = time.thread_time()
    with pytest.raises(ImageTooCostly):
        decode_image(body, OPTIONS)
    assert time.thread_time() - begin_s < 0.5


@guarantee(
    "Costly images",
    "handler/image/decode_cost.py",
    "self._end_s = time.thread_time() + BUDGET_S - spent_s",
    "self._end_s = time.thread_time() + 10 * BUDGET_S - spent_s",
)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: png_of_chunks(MAX_BYTES // 12 - 20), id="png-chunks"),
        pytest.param(lambda: bmp_of_runs(7000, MAX_BYTES // 2 - 1000), id="bmp-runs"),
        pytest.param(lambda: gif_of_comments(MAX_BYTES // 3 - 10), id="gif-comments"),
    ],
)
def test_cost_without_markers_ends_with_the_budget(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counts the looks at the clock, of which 100 use up the budget: CPU time depends on the load.
    looks = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(looks) * BUDGET_S / 100)
    body = make()
    assert len(body) <= MAX_BYTES
    with pytest.raises(ImageTooCostly, match="takes too long"):
        decode_image(body, OPTIONS)
    assert next(looks) <= 105


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(encode(NOISE, "TIFF", compression="tiff_lzw"), id="tiff-of-many-strips"),
        pytest.param(progressive_jpeg(1000, 80), id="more-scans-than-anybody-makes"),
        pytest.param(b"\xff\xd8" + b"\xff" * 100 + encode(NOISE, "JPEG")[2:], id="filled"),
    ],
)
def test_real_images_are_decoded(body: bytes) -> None:
    assert decode_image(body, OPTIONS).pixels.size


@guarantee("Costly images")
def test_a_damaged_jpeg_has_one_budget_for_both_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    body = encode(NOISE, "JPEG", quality=95)
    damaged = damaged_jpeg(body)
    assert decode_image(damaged, DecodeOptions()).pixels.shape == (600, 800, 3)
    # A second passes between two looks at the clock, and the budget is 1.5 s.
    monkeypatch.setattr(time, "thread_time", itertools.count().__next__)
    assert decode_image(body, DecodeOptions()).pixels.size
    with pytest.raises(ImageTooCostly, match="is damaged"):
        decode_image(damaged, DecodeOptions())


@guarantee(
    "Costly images",
    "handler/image/decode_cost.py",
    "if frame.kind not in COMMON or frame.bits != 8:",
    "if frame.kind not in COMMON:",
)
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(lambda kind=kind: encode(NOISE, "JPEG").replace(BASELINE, kind, 1), id=id)
            for kind, id in ((b"\xff\xc3", "lossless"), (b"\xff\xc9", "arithmetic"))
        ),
        pytest.param(
            lambda: progressive_jpeg(64, 9).replace(b"\xff\xc2", b"\xff\xca", 1), id="both"
        ),
        pytest.param(lambda: with_bits(encode(NOISE, "JPEG"), 12), id="12-bits"),
        pytest.param(lambda: encode(NOISE, "TIFF", compression="jpeg"), id="jpeg-in-a-tiff"),
        pytest.param(lambda: encode(NOISE, "TIFF", big_tiff=True), id="bigtiff"),
        pytest.param(lambda: b"MM\0+" + bytes(600_000), id="big-endian-bigtiff"),
    ],
)
def test_rare_kinds_are_refused_with_what_to_send(make: Callable[[], bytes]) -> None:
    with pytest.raises(UnsupportedFormat, match="; send "):
        decode_image(make(), OPTIONS)


def test_a_tiff_of_too_many_bits_is_refused_before_libtiff_sees_it() -> None:
    body = make_tiff(b"", width=7000, height=7000, bits=(16,) * 4, photometric=2)
    with pytest.raises(ImageTooLarge, match="64 bits"):
        decode_image(body, OPTIONS)


@guarantee(
    "Costly images",
    "handler/image/decode.py",
    "with MEMORY.hold(PILLOW_BYTES * image.height * image.width):",
    "with MEMORY.hold(0):",
)
@pytest.mark.parametrize(
    ("format", "options", "waits"),
    [
        pytest.param("PNG", {}, True, id="png"),
        pytest.param("TIFF", {}, True, id="tiff"),
        pytest.param("WEBP", {"save_all": True}, True, id="webp"),
        pytest.param("JPEG", {"progressive": True}, True, id="progressive-jpeg"),
        # Decoded at an eighth of its size.
        pytest.param("JPEG", {}, False, id="jpeg"),
    ],
)
def test_a_large_image_waits_for_memory(format: str, options: dict, waits: bool) -> None:
    image = Image.new("RGB", (2000, 1500))
    payload = encode(image, format, **options)
    with ThreadPoolExecutor(1) as pool:
        with decode_cost.MEMORY.hold(decode_cost.MAX_DECODING_BYTES):
            decoded = pool.submit(decode_image, payload, DecodeOptions(min_size=100))
            eventually(lambda: decoded.done() or decode_cost.MEMORY._changed._waiters)
            assert decoded.done() != waits
        assert decoded.result().width == 2000
    # A single image has room, whatever its size, and what was held is free.
    with decode_cost.MEMORY.hold(2 * decode_cost.MAX_DECODING_BYTES):
        pass


@pytest.mark.parametrize(
    ("usual_s", "costly_s", "is_left"),
    [
        pytest.param(0.002, 0.09, False, id="cheap-beside-thumbnails"),
        pytest.param(0.002, 0.11, True, id="costly-beside-thumbnails"),
        pytest.param(0.2, 0.7, False, id="usual-where-all-are-large"),
        pytest.param(0.2, 1.5, True, id="costly-beside-large-ones"),
    ],
)
def test_an_image_is_left_if_it_costs_much_more_than_the_median(
    usual_s: float, costly_s: float, is_left: bool
) -> None:
    costs = UsualCost()
    for _ in range(3):
        for _ in range(30):
            costs.check(usual_s)
        if is_left:
            with pytest.raises(ImageLeft):
                costs.check(costly_s)
        else:
            costs.check(costly_s)


def test_images_become_usual() -> None:
    costs = UsualCost()
    costs.check(0.01)
    left = 0
    for _ in range(100):
        with contextlib.suppress(ImageLeft):
            costs.check(0.3)
            continue
        left += 1
    assert 0 < left < 60


@pytest.mark.parametrize(
    ("make", "is_left"),
    [
        pytest.param(lambda: encode(NOISE.resize((5000, 5000)), "PNG"), True, id="png"),
        pytest.param(lambda: encode(NOISE.resize((7000, 7000)), "JPEG"), True, id="jpeg"),
        pytest.param(lambda: progressive_jpeg(4000, 20), True, id="scans"),
        pytest.param(lambda: encode(NOISE, "PNG"), False, id="small-png"),
        pytest.param(lambda: encode(NOISE.resize((4000, 3000)), "JPEG"), False, id="camera"),
    ],
)
def test_the_cost_of_an_image_is_predicted_before_it_is_decoded(
    make: Callable[[], bytes], is_left: bool
) -> None:
    payload, costs = make(), UsualCost()
    costs.check(0.01)
    began_s = time.thread_time()
    options = replace(OPTIONS, check_cost=costs.check)
    if not is_left:
        decode_image(payload, options)
        return
    with pytest.raises(ImageLeft):
        decode_image(payload, options)
    predicted_s = time.thread_time() - began_s
    began_s = time.thread_time()
    decode_image(payload, OPTIONS)
    assert 10 * predicted_s < time.thread_time() - began_s
