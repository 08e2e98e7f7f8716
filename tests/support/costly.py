"""Makes images that cost more than their size suggests, and measures what a request costs.

tests/reliability/test_worst_cost.py holds the most expensive ones known to the bound.
"""

from __future__ import annotations

import os
import pickle
import re
import resource
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
from PIL import Image

from offpath.handler.errors import ItemError
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


# Of an image.
MAX_BYTES = 20 * 2**20
MAX_MEMORY_BYTES = 8 * 2**30


# The largest square of 50 million pixels.
SIDE = 7071
# Where each pass of an interlaced PNG begins and how far its pixels are apart (PNG, 8.2).
ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
PALETTE, RGBA = 3, 6
PAETH = 4


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
