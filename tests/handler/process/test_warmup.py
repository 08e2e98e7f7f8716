from __future__ import annotations

import io

import pytest
from PIL import Image

from offpath.handler.image.decode import DecodeOptions, decode_image
from offpath.handler.process.warmup import warm_up_payloads


@pytest.mark.parametrize("size", [16, 224, 480])
def test_images_reach_both_decoders_and_the_scaling(size: int) -> None:
    jpeg, png = warm_up_payloads(size, size)
    assert [Image.open(io.BytesIO(file)).format for file in (jpeg, png)] == [
        "JPEG",
        "PNG",
    ]
    # 1.5 * 256 / 224, the default margin over the model's size.
    assert decode_image(jpeg, DecodeOptions(int(size * 1.4))).denominator == 2
