"""Decodes the field `data` of a form that was sent as application/x-www-form-urlencoded.

`urllib.parse.unquote_to_bytes` makes a Python object for every percent sign: 32 MB of percent signs
took 26 seconds and 6 GB. NumPy decodes a megabyte at a time, in linear time and little memory.
"""

from __future__ import annotations

import numpy as np

from offpath.handler.errors import BadEnvelope
from offpath.handler.request.multipart import Body

FIELD = b"data="
PIECE_BYTES = 2**20
PERCENT = 0x25
# Byte -> its value as a hexadecimal digit, or NO_DIGIT.
NO_DIGIT = 0xFF
DIGITS = np.full(256, NO_DIGIT, np.uint8)
DIGITS[list(b"0123456789ABCDEF")] = range(16)
DIGITS[list(b"abcdef")] = range(10, 16)


def read_percent_encoded(body: Body) -> bytes:
    """Decodes the value after `data=`. A percent sign without two digits stays unchanged.

    Raises:
        BadEnvelope: the body has more percent signs than a valid form can have.
    """
    data = np.frombuffer(body, np.uint8, offset=len(FIELD))
    if 3 * np.count_nonzero(data == PERCENT) > len(data):
        raise BadEnvelope("the form holds percent signs that encode nothing")
    pieces, begin = [], 0
    while begin < len(data):
        end = begin + PIECE_BYTES
        # A code at the end of a piece goes into the next piece as a whole.
        if end < len(data):
            end -= next((n for n in (2, 1) if data[end - n] == PERCENT), 0)
        pieces.append(_decode(data[begin:end]))
        begin = end
    return b"".join(pieces)


def _decode(text: np.ndarray) -> bytes:
    at = np.flatnonzero(text[:-2] == PERCENT)
    high, low = DIGITS[text[at + 1]], DIGITS[text[at + 2]]
    is_code = (high | low) != NO_DIGIT
    at = at[is_code]
    decoded, is_kept = text.copy(), np.ones(len(text), bool)
    decoded[at] = high[is_code] << 4 | low[is_code]
    is_kept[at + 1] = is_kept[at + 2] = False
    return decoded[is_kept].tobytes()
