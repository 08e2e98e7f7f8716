from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image

from handler.decode import DecodedImage, DecodeOptions, decode_image
from handler.resample import transform_scaled
from handler.transform import transform_image
from tests.photographs import PHOTOGRAPHS, Photograph, encode, find_photograph

# HandlerConfig's resize_size * scale_margin.
MIN_SIZE = 384


def scaled_jpeg(photograph: Photograph, size: tuple[int, int]) -> DecodedImage:
    payload = encode(photograph.rgb.resize(size), "JPEG", quality=92)
    return decode_image(payload, DecodeOptions(MIN_SIZE))


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=lambda p: p.name)
def test_picture_decoded_in_full_stays_bit_equal_to_pillows(
    photograph: Photograph,
) -> None:
    image = DecodedImage(
        np.asarray(photograph.rgb), photograph.rgb.height, photograph.rgb.width
    )
    np.testing.assert_array_equal(
        transform_scaled(image, 256, 224), transform_image(image, 256, 224)
    )


@pytest.mark.parametrize(
    "size",
    [(1000, 872), (1365, 1024), (1001, 770), (769, 1153), (1600, 1537), (3073, 3079)],
    ids=str,
)
@pytest.mark.parametrize("name", ["hubble_deep_field", "motorcycle_left", "grass"])
def test_both_resamplers_differ_by_at_most_one_level(
    name: str, size: tuple[int, int]
) -> None:
    image = scaled_jpeg(find_photograph(name), size)
    assert image.denominator > 1
    by_torch = transform_scaled(image, 256, 224).astype(int)
    by_pillow = transform_image(image, 256, 224)
    assert np.abs(by_torch - by_pillow).max() <= 1


@pytest.mark.parametrize("size", [(1411, 1411), (1365, 2048), (3071, 4001)], ids=str)
def test_scaled_decode_lies_where_the_exact_one_does(size: tuple[int, int]) -> None:
    # A smooth picture: scaling loses nothing of it, a shift of the geometry would show.
    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    waves = 127 + 100 * np.sin(rows / 71) * np.cos(columns / 53)
    pixels = np.repeat(waves[:, :, None], 3, 2).astype(np.uint8)
    payload = encode(Image.fromarray(pixels), "JPEG", quality=98, subsampling=0)
    scaled = decode_image(payload, DecodeOptions(MIN_SIZE))
    exact = decode_image(payload, DecodeOptions())
    assert scaled.denominator > 1
    difference = transform_scaled(scaled, 256, 224).astype(int)
    difference -= transform_image(exact, 256, 224)
    assert np.abs(difference).max() <= 2
    assert abs(difference.mean()) < 0.3


@pytest.mark.parametrize("size", [(4000, 800), (800, 4000), (30_000, 776)], ids=str)
def test_long_pictures_are_left_to_pillow_which_needs_no_memory_for_them(
    size: tuple[int, int],
) -> None:
    image = scaled_jpeg(find_photograph("china"), size)
    assert image.denominator == 2
    np.testing.assert_array_equal(
        transform_scaled(image, 256, 224), transform_image(image, 256, 224)
    )


def test_turned_pictures_cause_no_warning_on_the_log() -> None:
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        image = find_photograph("retina").rgb
        payload = encode(image, "JPEG", exif=exif)
        options = DecodeOptions(MIN_SIZE, exif_orientation=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            square = transform_scaled(decode_image(payload, options), 256, 224)
        assert square.shape == (224, 224, 3)
