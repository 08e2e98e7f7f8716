"""Images and requests that cost more than their size suggests, ways to send them, their cost.

tests/reliability/test_worst_cost.py holds the most expensive ones known to the bound.
"""

from __future__ import annotations

import base64
import os
import pickle
import re
import resource
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import psutil
from PIL import Image

from offpath.handler.errors import ItemError
from offpath.handler.request.forms import FORM, MULTIPART
from tests.support.photographs import encode


def progressive_jpeg(side: int, more_scans: int = 0) -> bytes:
    """Makes a progressive JPEG that repeats its last scan of twelve bytes."""
    jpeg = encode(Image.new("RGB", (side, side)), "JPEG", progressive=True, quality=50)
    begin = [match.start() for match in re.finditer(b"\xff\xda", jpeg)][-1]
    return jpeg[:-2] + jpeg[begin:-2] * more_scans + jpeg[-2:]


def damaged_jpeg(jpeg: bytes) -> bytes:
    """Puts stray bytes before a JPEG's end, at which libjpeg-turbo's fast interface gives up."""
    return jpeg[:-2] + bytes(range(1, 17)) + jpeg[-2:]


Tags = list[tuple[int, int, list[int] | bytes]]
# The letters of `struct` for types of tags, and the bytes of a value; a fraction has two parts.
TAG_TYPES = {3: ("H", 2), 4: ("I", 4), 5: ("", 8), 17: ("Q", 8)}


def tiff_of_tags(tags: Tags, at: int) -> bytes:
    """Makes a TIFF directory for a place in the file, with its values after it."""
    directory, values = struct.pack("<H", len(tags)), b""
    values_at = at + 2 + 12 * len(tags) + 4
    for tag, kind, numbers in tags:
        letter, size = TAG_TYPES[kind]
        is_raw = isinstance(numbers, bytes)
        raw = numbers if is_raw else struct.pack(f"<{len(numbers)}{letter}", *numbers)
        directory += struct.pack("<HHI", tag, kind, len(raw) // size)
        if len(raw) <= 4:
            directory += raw.ljust(4, b"\0")
        else:
            directory += struct.pack("<I", values_at + len(values))
            values += raw
    return directory + bytes(4) + values


def make_tiff(
    data: bytes,
    *,
    width: int = 100,
    height: int = 100,
    compression: int = 8,
    bits: tuple[int, ...] = (8,),
    photometric: int = 1,
    strips: int = 1,
    length: int | None = None,
    tile: tuple[int, int] | None = None,
    tiles: int = 1,
    first: Tags = [],
    last: Tags = [],
    end: bytes = b"",
) -> bytes:
    """Makes a TIFF whose strips share `data`, or a tiled one with a copy of it per tile.

    `first` and `last` are more tags around the usual ones, and `end` lies after the data.
    """
    tags: Tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, list(bits))]
    tags += [(259, 3, [compression]), (262, 3, [photometric]), (277, 3, [len(bits)])]
    if tile is None:
        lengths = [len(data) if length is None else length] * strips
        tags += [(273, 4, [8] * strips), (278, 4, [-(-height // strips)]), (279, 4, lengths)]
    else:
        tags[1] = (257, 4, [tile[1] * tiles if tiles > 1 else height])
        offsets = [8 + number * len(data) for number in range(tiles)]
        tags += [(322, 4, [tile[0]]), (323, 4, [tile[1]])]
        tags += [(324, 4, offsets), (325, 4, [len(data)] * tiles)]
    content = data * (tiles if tile else 1) + end
    at = 8 + len(content)
    return b"II*\0" + struct.pack("<I", at) + content + tiff_of_tags(first + tags + last, at)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def make_png(
    width: int,
    height: int,
    packed: bytes,
    *,
    depth: int = 8,
    colour: int = 2,
    interlaced: bool = False,
    between: bytes = b"",
) -> bytes:
    """Makes a PNG of deflated rows; `between` are chunks before them."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    chunks = png_chunk(b"IHDR", head) + between + png_chunk(b"IDAT", packed)
    return b"\x89PNG\r\n\x1a\n" + chunks + png_chunk(b"IEND", b"")


def png_of_chunks(count: int) -> bytes:
    """Makes a small PNG with many empty chunks before its pixels."""
    return make_png(8, 8, zlib.compress(b"\0" * 8 * 25), between=png_chunk(b"teSt", b"") * count)


def bmp_of_runs(side: int, runs: int) -> bytes:
    """Makes a BMP with one pixel per run (RLE8), which Pillow decodes in Python."""
    data, offset = b"\x01\x07" * runs, 14 + 40 + 1024
    head = b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset)
    head += struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(data), 2835, 2835, 256, 0)
    return head + bytes(1024) + data


def gif_of_comments(count: int) -> bytes:
    """Makes a GIF that contains comments and no image."""
    head = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0) + bytes(6)
    return head + b"\x21\xfe\x00" * count


Maker = Callable[[], bytes]
# Of an image, and of a request.
MAX_BYTES, MAX_REQUEST_BYTES = 20 * 2**20, 32 * 2**20
MAX_MEMORY_BYTES = 8 * 2**30


class Request(NamedTuple):
    """A body with the content type that the client names."""

    body: bytes
    content_type: str = ""


def in_form(body: bytes) -> Request:
    """Wraps a body in a form whose every byte is percent-encoded."""
    return Request(b"data=%" + body.hex("%").encode(), FORM)


def in_json(body: bytes) -> Request:
    """Wraps a body in JSON with base64."""
    return Request(b'{"data": "' + base64.b64encode(body) + b'"}')


WAYS_IN: dict[str, Callable[[bytes], Request]] = {
    "form": in_form,
    "JSON with base64": in_json,
}
# The largest square of 50 million pixels.
SIDE = 7071
# Where each pass of an interlaced PNG begins and how far its pixels are apart (PNG, 8.2).
ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
PALETTE, RGBA = 3, 6
PAETH = 4


def noise(side: int, full: int = 0) -> Image.Image:
    """Noise, enlarged to `full` pixels a side."""
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    image = Image.fromarray(pixels)
    return image.resize((full, full)) if full else image


def png(width: int, height: int, depth: int, colour: int, bits: int, interlaced: bool) -> bytes:
    """A PNG of one colour, `bits` a pixel, whose every row has to be predicted."""

    def rows() -> Iterator[bytes]:
        for x, y, over, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
            across, count = -(-(width - x) // over), -(-(height - y) // down)
            for _ in range(count):
                yield bytes([PAETH]) + bytes((across * bits + 7) // 8)

    packer = zlib.compressobj(9)
    data = b"".join(map(packer.compress, rows())) + packer.flush()
    palette = png_chunk(b"PLTE", bytes(768)) + png_chunk(b"tRNS", bytes(256))
    between = palette if colour == PALETTE else b""
    kind = {"depth": depth, "colour": colour, "interlaced": interlaced}
    return make_png(width, height, data, between=between, **kind)


def jpeg_of_exif(kind: int, values: int) -> bytes:
    """A CMYK image, for Pillow, whose EXIF has a resolution of so many numbers."""
    jpeg = encode(Image.new("CMYK", (64, 64)), "JPEG")
    entry = struct.pack("<H", 2)
    entry += struct.pack("<HHII", 0x0128, 3, 1, 2)
    entry += struct.pack("<HHII", 0x011A, kind, values, 38)
    exif = b"II*\0" + struct.pack("<I", 8) + entry + bytes(4) + b"\1\0\0\0" * 2 * values
    pieces = [exif[at : at + 65_000] for at in range(0, len(exif), 65_000)]
    segments = b"".join(
        b"\xff\xe1" + struct.pack(">H", len(piece) + 8) + b"Exif\0\0" + piece for piece in pieces
    )
    return jpeg[:2] + segments + jpeg[2:]


def deflated_after_nothing(count: int, blocks: int) -> bytes:
    """Deflates zeros after empty blocks of five bytes each."""
    zeros = bytes(count)
    stored = b"\x01" + struct.pack("<HH", count, count ^ 0xFFFF) + zeros
    empty = b"\x00\x00\x00\xff\xff" * blocks
    return b"\x78\x01" + empty + stored + struct.pack(">I", zlib.adler32(zeros))


# By format; a name stands for the path through a decoder, or for the limit, that makes it costly.
COSTLY: dict[str, dict[str, Maker]] = {
    "JPEG": {
        "progressive": lambda: encode(
            noise(900, SIDE), "JPEG", progressive=True, quality=40, subsampling=0
        ),
        "scans": lambda: progressive_jpeg(SIDE, 3),
        "CMYK": lambda: encode(noise(900, SIDE).convert("CMYK"), "JPEG", quality=50),
        "damaged": lambda: damaged_jpeg(COSTLY["JPEG"]["progressive"]()),
    },
    "PNG": {
        "high": partial(png, 50, 1_000_000, 16, RGBA, 64, True),
        "chunks": partial(png_of_chunks, MAX_BYTES // 12 - 20),
    },
    "GIF": {"comments": partial(gif_of_comments, MAX_BYTES // 3 - 10)},
    "WEBP": {
        "lossy": lambda: encode(noise(900, SIDE), "WEBP", quality=60, method=0),
        "animated": lambda: encode(
            Image.new("RGBA", (SIDE, SIDE), (1, 2, 3, 4)),
            "WEBP",
            save_all=True,
            append_images=[Image.new("RGBA", (SIDE, SIDE), (4, 3, 2, 1))],
            method=0,
        ),
    },
    "BMP": {"runs": partial(bmp_of_runs, 7000, MAX_BYTES // 2 - 1000)},
    "TIFF": {
        "lzma": lambda: encode(Image.new("RGBA", (SIDE, SIDE)), "TIFF", compression="lzma"),
        "strips": lambda: make_tiff(
            bytes(500), compression=1, width=500, height=100_000, strips=100_000
        ),
    },
    "npy": {"parentheses": lambda: npy_header(b"(" * 9000)},
    "JSON and base64": {
        "objects": lambda: b"[" + b"{}," * (11 * 2**20),
        "escapes": lambda: b'"' + b"\\u0041" * (5 * 2**20) + b'"',
    },
}
# Envelopes that cost something themselves.
COSTLY_ENVELOPES: dict[str, Callable[[], Request]] = {
    "form of codes": lambda: Request(b"data=" + b"%41" * (2**25 // 3 - 2), FORM),
    "form of JSON": lambda: Request(b"data=%22" + b"A" * (2**25 - 11) + b"%22", FORM),
    "multipart of almost boundaries": lambda: Request(
        b"-" * 2**25, f"{MULTIPART}; boundary={'-' * 69}x"
    ),
    "multipart of names": lambda: Request(
        (b"--x\r\n" + b"content-disposition:" * 204 + b"\r\n\r\n\r\n") * 31 + b"--x--",
        f"{MULTIPART}; boundary=x",
    ),
}


def npy_header(text: bytes) -> bytes:
    """An npy file of a header alone."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


class Cost(NamedTuple):
    """The cost of one request.

    Attributes:
        cpu_s: of all threads.
        memory_mb: more than before it.
        answer: the error's type, or "200"; a bug is none of both.
    """

    cpu_s: float
    memory_mb: int
    answer: str


def measure(work: Callable[[], object]) -> Cost:
    """Measures a request's work in a child process, which never had more memory than now."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, pickle.dumps(_run(work)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else Cost(0.0, 0, "the process ended")


def _run(work: Callable[[], object]) -> Cost:
    # On top of what this process has mapped, which grows with the tests before.
    most = psutil.Process().memory_info().vms + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before, begin_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        work()
        answer = "200"
    except ItemError as error:
        answer = error.type
    except Exception as error:
        answer = f"BUG {error!r}"
    cpu_s = time.process_time() - begin_s
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Cost(cpu_s, (after - before) // 1024, answer)
