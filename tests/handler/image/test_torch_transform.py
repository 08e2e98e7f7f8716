from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from offpath.handler.image.decode import DecodedImage, DecodeOptions, decode_image
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.torch_transform import (
    transform_on_device,
    transform_with_torch,
)
from offpath.handler.image.transform import transform_image
from tests.support.photographs import PHOTOGRAPHS, encode, find_photograph


def as_jpeg(image: Image.Image) -> DecodedImage:
    pixels = np.asarray(image)
    return DecodedImage(pixels, image.height, image.width, is_jpeg=True)


@cache
def make_waves(size: tuple[int, int]) -> bytes:
    """Makes a smooth image: scaling loses nothing, but a shift of the geometry shows."""
    rows, columns = np.ogrid[0 : size[1], 0 : size[0]]
    waves = 127 + 100 * np.sin(rows / 71) * np.cos(columns / 53)
    pixels = np.repeat(waves[:, :, None], 3, 2).astype(np.uint8)
    return encode(Image.fromarray(pixels), "JPEG", quality=98, subsampling=0)


@cache
def decode_waves(size: tuple[int, int]) -> DecodedImage:
    return decode_image(make_waves(size), DecodeOptions())


GEOMETRIES = [
    InputGeometry(),
    InputGeometry(224, 256, interpolation="bicubic"),
    InputGeometry(224, 256, "stretch", "bicubic"),
    InputGeometry(224, 224, "letterbox", fill=(114, 7, 250)),
    InputGeometry(225, 257, channels=1),
    InputGeometry((192, 96), 220),
    InputGeometry((96, 192), (110, 200), "stretch", "bicubic"),
    InputGeometry((256, 128), (256, 128), "letterbox", fill=(114, 7, 250)),
    InputGeometry(97, 97, "letterbox", "bicubic", channels=1, fill=(80,)),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_images_differ_from_pillow_only_by_rounding(geometry: InputGeometry) -> None:
    for photograph in PHOTOGRAPHS[::3]:
        image = as_jpeg(photograph.rgb)
        expected = transform_image(image, geometry).astype(int)
        planes = torch.from_numpy(image.pixels.copy()).permute(2, 0, 1)
        on_device = transform_on_device([planes.flip(2), planes], geometry)[1]
        assert on_device is not None and on_device.dtype == torch.uint8
        # Pillow cuts off what bicubic overshoots between its two passes; floats do not.
        most = 8 if geometry.interpolation == "bicubic" else 2
        by_torch = transform_with_torch(image, geometry)
        for made, bound in ((by_torch, 2), (on_device.numpy(), most)):
            assert made.shape == geometry.shape
            difference = np.abs(made - expected)
            assert difference.max() <= bound and difference.mean() <= 0.25


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(
    "size",
    [
        *[(30, 41), (257, 300), (1, 900), (900, 1)],
        pytest.param((224, 224), id="smaller-than-the-resize"),
        pytest.param((333, 500), id="square-as-wide-as-the-resize"),
    ],
)
def test_any_image_size_fits_any_geometry(size: tuple[int, int], geometry: InputGeometry) -> None:
    image = as_jpeg(find_photograph("coffee").rgb.resize(size))
    made = transform_with_torch(image, geometry)
    assert made.shape == geometry.shape
    assert np.abs(made - transform_image(image, geometry).astype(int)).mean() <= 0.25


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_scaled_decode_keeps_the_position(geometry: InputGeometry) -> None:
    for size in [(1411, 1411), (1365, 2048), (4001, 3071)]:
        options = DecodeOptions.for_input(geometry, 1.5)
        scaled = decode_image(make_waves(size), options)
        assert scaled.denominator > 1
        exact = transform_image(decode_waves(size), geometry)
        difference = transform_with_torch(scaled, geometry).astype(int) - exact
        assert np.abs(difference).max() <= 2
        assert abs(difference.mean()) < 0.3
