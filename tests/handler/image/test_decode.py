from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageOps

from offpath.handler.errors import ImageTooLarge, ItemError, UndecodableImage, UnsupportedFormat
from offpath.handler.image.decode import DecodeOptions, Pixels, decode_image
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from tests.guarantees import guarantee
from tests.support.costly import make_png, make_tiff, measure
from tests.support.photographs import encode, find_photograph

EXACT = DecodeOptions()
ORIENTATION = 0x0112
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]


def with_pillow(payload: bytes) -> Pixels:
    """Decodes as TorchServe's handler does, to RGB."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.asarray(image.convert("RGB"))


def oriented(image: Image.Image, format: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(image, format, exif=exif)


def assert_equal_pixels(payload: bytes, options: DecodeOptions = EXACT) -> None:
    decoded = decode_image(payload, options)
    expected = with_pillow(payload)
    assert (decoded.height, decoded.width) == expected.shape[:2]
    assert decoded.denominator == 1
    np.testing.assert_array_equal(decoded.pixels, expected)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_format_and_mode_decodes_as_pillow_does(files: dict[str, bytes], kind: type) -> None:
    for name, payload in files.items():
        decoded = decode_image(kind(payload), EXACT)
        assert decoded.pixels.dtype == np.uint8
        if "16bit" not in name:
            np.testing.assert_array_equal(decoded.pixels, with_pillow(payload), name)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 17])
def test_tiny_and_odd_jpegs_are_decoded_in_full(width: int) -> None:
    photograph = find_photograph("chelsea").rgb
    for height in (1, 3, 8, 9, 17):
        for subsampling in (0, 1, 2):
            image = photograph.crop((200, 100, 200 + width, 100 + height))
            payload = encode(image, "JPEG", subsampling=subsampling)
            for min_size in (0, 16):
                assert_equal_pixels(payload, DecodeOptions(min_size))


# Every mode that Pillow can store, all of them as TIFF; `files` has those of other formats.
MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB"]
WIDE = {"I": np.int32, "F": np.float32, "I;16": "<u2", "I;16B": ">u2", "I;16L": "<u2"}


def make_mode(mode: str) -> Image.Image:
    image = find_photograph("coffee").rgb.resize((61, 40))
    if mode in WIDE:
        # Below and above what Pillow keeps, but not of 16 bits, which have a high byte then.
        low, high = (0, 255) if "16" in mode else (-50, 900)
        values = np.linspace(low, high, 61 * 40).astype(WIDE[mode])
        return Image.frombytes(mode, (61, 40), values.tobytes())
    if mode == "LAB":
        return Image.frombytes(mode, image.size, image.tobytes())
    return image.convert(mode[0]).convert(mode) if mode in ("LA", "PA") else image.convert(mode)


@pytest.mark.parametrize("mode", [*MODES, "I", "F", "I;16", "I;16B"])
def test_every_mode_of_a_file_is_converted_as_pillow_does(mode: str) -> None:
    assert_equal_pixels(encode(make_mode(mode), "TIFF"))


@guarantee(
    "Pixels are the file's pixels",
    "handler/image/decode.py",
    "        return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)",
    (
        '        return np.repeat((grey.view("<u2") >> 8).astype(np.uint8)[:, :, '
        "None], 3, axis=2)"
    ),
)
def test_16_bit_grey_keeps_its_high_byte(files: dict[str, bytes]) -> None:
    for name in ("png-16bit", "tiff-16bit", "tiff-16bit-big-endian"):
        with Image.open(io.BytesIO(files[name])) as image:
            high = np.asarray(image).astype(np.uint32) >> 8
        pixels = decode_image(files[name], EXACT).pixels
        np.testing.assert_array_equal(pixels, np.repeat(high[:, :, None], 3, axis=2))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_ignored_like_stock_or_honoured_on_request(
    format: str, orientation: int
) -> None:
    image = find_photograph("chelsea").rgb.resize((61, 40))
    payload = oriented(image, format, orientation)
    # Stock: Image.open and no exif_transpose. Pillow itself turns a TIFF when it loads it.
    assert_equal_pixels(payload)
    decoded = decode_image(payload, DecodeOptions(exif_orientation=True))
    with Image.open(io.BytesIO(payload)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert (decoded.height, decoded.width) == expected.shape[:2]
    np.testing.assert_array_equal(decoded.pixels, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_of_a_scaled_jpeg_keeps_the_geometry(orientation: int) -> None:
    payload = oriented(find_photograph("retina").rgb.resize((1001, 801)), "JPEG", orientation)
    exact = decode_image(payload, DecodeOptions(exif_orientation=True))
    scaled = decode_image(payload, DecodeOptions(384, exif_orientation=True))
    assert scaled.denominator == 2
    assert (scaled.height, scaled.width) == (exact.height, exact.width)
    expected, made = (
        transform_image(image, InputGeometry()).astype(float) for image in (exact, scaled)
    )
    # A shift by half a decoded pixel would make a difference of 0.5.
    assert np.abs(expected - made).mean() < 0.4


@pytest.mark.parametrize(
    ("size", "by_longer", "denominator"),
    [
        ((201, 189), False, 4),
        ((512, 377), False, 8),
        ((512, 376), False, 4),
        ((95, 97), False, 2),
        ((94, 96), False, 1),
        ((94, 96), True, 2),
        ((12, 384), True, 8),
        ((12, 384), False, 1),
    ],
    ids=str,
)
def test_large_jpeg_is_decoded_at_a_smaller_scale(
    size: tuple[int, int], by_longer: bool, denominator: int
) -> None:
    upright = find_photograph("hubble_deep_field").rgb.resize(size)
    for turned in (upright, upright.transpose(Image.Transpose.ROTATE_90)):
        payload = encode(turned, "JPEG")
        image = decode_image(payload, DecodeOptions(48, by_longer=by_longer))
        assert (image.width, image.height) == turned.size
        assert image.denominator == denominator
        height, width = (-(-side // denominator) for side in reversed(turned.size))
        assert image.pixels.shape == (height, width, 3)


@pytest.mark.parametrize("format", FORMATS)
def test_truncated_file_of_every_format_is_refused(format: str) -> None:
    payload = encode(find_photograph("chelsea").rgb, format)
    for share in (0.05, 0.3, 0.6, 0.9):
        with pytest.raises((UndecodableImage, UnsupportedFormat)):
            decode_image(payload[: int(len(payload) * share)], EXACT)
    for length in (*range(1, 32), 64, 128):
        with pytest.raises(ItemError):
            decode_image(payload[:length], EXACT)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"hello", id="text"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="svg"),
        pytest.param(encode(Image.new("RGB", (8, 8)), "ICO"), id="ico"),
        pytest.param(b"RIFF\x10\0\0\0WAVEfmt ", id="wav"),
    ],
)
def test_other_formats_are_unsupported(payload: bytes) -> None:
    with pytest.raises(UnsupportedFormat):
        decode_image(payload, EXACT)


def claim_size(format: str, side: int) -> bytes:
    """Makes a file whose header claims side x side pixels (for WebP, its largest size)."""
    payload = bytearray(encode(Image.new("RGB", (16, 16)), format))
    if format == "PNG":
        return make_png(side, side, zlib.compress(bytes(1000)))
    if format == "JPEG":
        frame = payload.index(b"\xff\xc0")
        payload[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    elif format == "GIF":
        payload[6:10] = struct.pack("<HH", side, side)
    elif format == "BMP":
        payload[18:26] = struct.pack("<ii", side, side)
    elif format == "TIFF":
        entries = struct.unpack_from("<I", payload, 4)[0] + 2
        for entry in (entries, entries + 12):  # width and length come first
            struct.pack_into("<HHII", payload, entry, 256 + (entry > entries), 4, 1, side)
    else:  # a VP8X header: 24 bits a side, less one
        size = struct.pack("<I", 16383 - 1)[:3]
        canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + size * 2
        body = b"WEBP" + canvas + bytes(payload[12:])
        return b"RIFF" + struct.pack("<I", len(body)) + body
    return bytes(payload)


@pytest.mark.parametrize("format", FORMATS)
def test_one_pixel_over_the_limit_is_refused_by_the_header(format: str) -> None:
    payload = encode(find_photograph("chelsea").rgb.resize((50, 40)), format)
    assert decode_image(payload, DecodeOptions(max_pixels=2000)).pixels.size == 6000
    with pytest.raises(ImageTooLarge, match="50 x 40 pixels; at most 1999"):
        decode_image(payload, DecodeOptions(max_pixels=1999))


BOMBS: dict[str, Callable[[], bytes]] = {
    **{format: partial(claim_size, format, 60_000) for format in FORMATS},
    "huge-tile": lambda: make_tiff(
        zlib.compress(bytes(1000)), width=64, height=64, tile=(32768, 32768)
    ),
    "png-of-one-column": lambda: make_png(
        1, 49_999_999, zlib.compress(bytes(2 * 49_999_999)), colour=0
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_no_memory(name: str) -> None:
    payload = BOMBS[name]()
    decode_image(encode(Image.new("RGB", (300, 300)), "PNG"), EXACT)
    cost = measure(lambda: decode_image(payload, EXACT))
    assert cost.memory_mb < 8
    assert cost.answer in ("ImageTooLarge", "ImageTooCostly", "UndecodableImage")
