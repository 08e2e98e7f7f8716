from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from offpath.handler.errors import ItemError
from offpath.handler.image.decode import DecodeOptions, decode_image
from tests.guarantees import guarantee
from tests.support.costly import make_tiff, tiff_of_tags
from tests.support.photographs import encode

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8))
MEGABYTE = b"\x78\x01" + b"\0\0\0\xff\xff" * 200_000 + zlib.compress(bytes(100))[2:]
HUGE_TILE = zlib.compress(bytes(50_000_000))


def doubled(tag: int, kind: int, values: list[int], **others: object) -> bytes:
    """Makes a TIFF whose tag comes first with a type that Pillow skips."""
    return make_tiff(first=[(tag, kind, values)], **others)


def with_directory(tag: int, kind: int, values: bytes) -> bytes:
    pointed = tiff_of_tags([(0x9000, kind, values)], 8 + 10_000)
    return make_tiff(bytes(10_000), compression=1, last=[(tag, 4, [10_008])], end=pointed)


@guarantee(
    "Costly images",
    "handler/image/tiff_cost.py",
    "if not is_forgiven and (tag in self._tags or kind not in SIZES):",
    "if not is_forgiven and kind not in SIZES:",
)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: doubled(
                *(279, 17, [len(MEGABYTE)] * 1000),
                data=MEGABYTE,
                height=1000,
                strips=1000,
                length=1,
            ),
            "tag 279",
            id="lengths-of-strips-in-a-type-that-pillow-skips",
        ),
        pytest.param(
            lambda: make_tiff(MEGABYTE, last=[(279, 4, [1])]),
            "tag 279",
            id="a-tag-twice",
        ),
        pytest.param(
            lambda: make_tiff(HUGE_TILE, tile=(1_000_000, 50), tiles=400, width=1),
            "pixels of 8 bits",
            id="tiles-far-larger-than-the-image",
        ),
        pytest.param(
            lambda: doubled(322, 17, [1_000_000], data=HUGE_TILE, tile=(112, 112)),
            "tag 322",
            id="width-of-tiles-in-a-type-that-pillow-skips",
        ),
        pytest.param(
            lambda: make_tiff(bytes(10_000), last=[(9000 + n, 3, [1]) for n in range(4000)]),
            "1000 tags",
            id="thousands-of-tags",
        ),
        *(
            pytest.param(
                lambda tag=tag: with_directory(tag, 5, b"\1\0\0\0" * 2_000_000),
                "100000 values",
                id=f"fractions-in-directory-{tag}",
            )
            for tag in (34665, 34853)
        ),
        pytest.param(
            lambda: make_tiff(bytes(10_000), last=[(282, 5, b"\1\0\0\0" * 2_000_000)]),
            "100000 values",
            id="fractions-in-a-tag",
        ),
    ],
)
def test_what_decoders_read_differently_or_take_long_over_is_refused(
    make: Callable[[], bytes], message: str
) -> None:
    body = bytearray(make())
    begin_s = time.thread_time()
    with pytest.raises(ItemError, match=message):
        decode_image(body, DecodeOptions())
    assert time.thread_time() - begin_s < 0.5


@guarantee("Costly images")
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "packbits", "zstd"])
def test_what_encoders_write_is_decoded(compression: str | None) -> None:
    exif = NOISE.getexif()
    exif.get_ifd(0x8769)[0x829A] = 0.01
    exif.get_ifd(0x8825)[2] = (1.0, 2.0, 3.0)
    body = encode(NOISE, "TIFF", compression=compression, exif=exif, dpi=(72, 72))
    assert decode_image(body, DecodeOptions()).pixels.shape == (300, 400, 3)
    assert decode_image(body, DecodeOptions(exif_orientation=True)).pixels.size
