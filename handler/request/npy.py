"""Reads the thin client's npy arrays as the model's uint8 input, without a copy.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np

from offpath.handler.errors import BadTensor
from offpath.handler.image.decode import Pixels
from offpath.handler.image.formats import Payload

# How a NumPy array file begins, the thin client's format.
NPY_MAGIC = b"\x93NUMPY"
# Version 3 is for field names that are not ASCII, which a plain array does not have.
NPY_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# NumPy's own bound is 10,000 bytes of text.
MAX_NPY_HEADER_BYTES = 16_384
MAX_CLAIM_BYTES = 4096


def read_npy(payload: Payload, expected: tuple[int, int, int], made_for: bytes = b"") -> Pixels:
    """Reads a thin client's array: uint8 [height, width, channels], never pickled.

    Args:
        made_for: the model's `HandlerConfig.thin_settings` as JSON. A client of ours appends those
            that it followed to the array, where NumPy ignores them.

    Raises:
        BadTensor: the array has another shape or dtype, holds pickled objects, or is broken, or it
            was made for other settings.
    """
    try:
        shape, is_fortran, dtype, offset = _read_npy_header(payload)
    except Exception as error:
        # NumPy's header parser raises anything on broken input: TokenError, RecursionError, ...
        raise BadTensor(
            f"the payload is not a plain npy array; send uint8 {list(expected)}"
        ) from error
    # Checked before any memory is allocated: a header may claim terabytes.
    if dtype != np.uint8 or shape != expected:
        raise BadTensor(
            f"the array is {dtype} {list(shape)}; the model takes uint8 {list(expected)}"
        )
    count = math.prod(expected)
    if len(payload) - offset < count:
        raise BadTensor(
            f"the array has {len(payload) - offset} bytes of pixels; {count} are needed"
        )
    claim = bytes(payload[offset + count :][:MAX_CLAIM_BYTES])
    if made_for and claim[:1] == b"{" and claim != made_for:
        raise BadTensor("the pixels were made for another model's input; make them as `input` says")
    pixels: Pixels = np.frombuffer(payload, np.uint8, count, offset)
    return pixels.reshape(expected, order="F" if is_fortran else "C")


def _read_npy_header(
    payload: Payload,
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns (shape, is in Fortran order, dtype, offset of the pixels)."""
    length_bytes = 2 if payload[6:8] == b"\x01\x00" else 4
    start = 8 + length_bytes
    end = start + int.from_bytes(payload[8:start], "little")
    return _parse_npy_header(bytes(payload[: min(end, MAX_NPY_HEADER_BYTES)]))


# Cached, because all clients of a model send the same header and parsing it takes longer than
# reading 150 kB of pixels: NumPy uses Python's parser, 35 of a request's 60 microseconds.
@lru_cache(maxsize=16)
def _parse_npy_header(
    header: bytes,
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    shape, is_fortran, dtype = NPY_HEADER_READERS[version](file)
    return shape, is_fortran, dtype, file.tell()
