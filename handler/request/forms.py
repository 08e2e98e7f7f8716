"""Parses forms: multipart/form-data into views of the body, and percent-encoded ones.

TorchServe parses forms itself, but behind the front door it does not see them. Syntax of multipart:
RFC 7578 and RFC 2046, section 5.1.

`urllib.parse.unquote_to_bytes` makes a Python object for every percent sign: 32 MB of percent signs
took 26 seconds and 6 GB. NumPy decodes a megabyte at a time, in linear time and little memory.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from offpath.handler.errors import BadEnvelope

# Types with a method `find`, which a memoryview lacks.
Body = bytes | bytearray | mmap.mmap

BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;",]{1,70}))', re.IGNORECASE)
# Neither `filename=` nor the `name=` that some clients put beside a part's content type.
FIELD_NAME = re.compile(rb'content-disposition:[^\r\n]*?[;\s]name="?([^";\r\n]*)"?', re.IGNORECASE)
FILE_NAME = re.compile(rb"content-disposition:[^\r\n]*?[;\s]filename\*?=", re.IGNORECASE)
CONTENT_TYPE = re.compile(rb"content-type:[ \t]*([^\r\n]*)", re.IGNORECASE)
MAX_FIELDS = 32
MAX_HEADER_BYTES = 4096
LINE_END = b"\r\n"
HEADER_END = b"\r\n\r\n"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
# More than clients write around a field whose file has a name of 255 bytes.
MAX_AROUND_FIELD = 1024
UNRESERVED = bytes({*b"-._~"} | {byte for byte in range(128) if chr(byte).isalnum()})
CURE = "send one image per request, or several as `instances` of KServe's V1"


class FormField(NamedTuple):
    """One field of a form; `content_type` is None if it has no such header."""

    name: str
    value: memoryview
    content_type: str | None
    is_file: bool


def parse_body(body: Body, content_type: str) -> dict[str, Any]:
    """Parses a body into parameters: the fields of a form, or the body itself."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == MULTIPART:
        return dict(parse_multipart(body, content_type))
    if kind == FORM and body[: len(FIELD)] == FIELD:
        return dict(parse_url_form(body))
    # `curl --data-binary` labels any body a form, so the label alone means nothing.
    return {"body": memoryview(body)}


def parse_multipart(body: Body, content_type: str) -> dict[str, memoryview]:
    """Parses a form; raises BadEnvelope as `split_multipart`, and for a name that comes twice."""
    return keep_all((part.name, part.value) for part in split_multipart(body, content_type))


def keep_all(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns fields by their names, and raises BadEnvelope where that would lose one."""
    kept: dict[str, Any] = {}
    for name, value in fields:
        if name in kept:
            raise BadEnvelope(f"the request has two fields {name[:80]!r}; {CURE}")
        kept[name] = value
    return kept


def find_lost_field(row: Mapping[str, Any], headers: Mapping[str, str]) -> BadEnvelope | None:
    """Returns an error if a form was longer than the fields that TorchServe found in it.

    ts/service.py keeps the last of several fields with one name.
    """
    if "data" not in row:
        return None
    values: list[Any] = [*row.values()]
    kind, length = headers.get("content-type", "").lower(), headers.get("content-length", "")
    are_bytes = all(isinstance(value, (bytes, bytearray)) for value in values)
    if not are_bytes or not kind.startswith((FORM, MULTIPART)) or not length.isdecimal():
        return None
    room = sum(map(len, values)) + MAX_AROUND_FIELD * (1 + len(values))
    if kind.startswith(FORM):  # which has three bytes for a reserved one
        room += 2 * sum(len(value.translate(None, UNRESERVED)) for value in values)
    lost = BadEnvelope(f"the form has several fields of one name; {CURE}")
    return lost if int(length) > room else None


def split_multipart(body: Body, content_type: str) -> Iterator[FormField]:
    """Yields the fields of a form that have a name.

    Raises:
        BadEnvelope: the boundary is missing, a part has no end, or there are too many parts.
    """
    match = BOUNDARY.search(content_type)
    if match is None:
        raise BadEnvelope("the multipart content type names no boundary")
    delimiter = b"--" + (match[1] or match[2]).encode()
    view = memoryview(body)
    position = body.find(delimiter)
    for _ in range(MAX_FIELDS):
        position += len(delimiter)
        if position < len(delimiter) or body[position : position + 2] != LINE_END:
            # `--` follows the last part; anything else is not a delimiter.
            return
        # In a part without headers the empty line begins with the delimiter's own line end.
        header_end = body.find(HEADER_END, position, position + MAX_HEADER_BYTES)
        start = header_end + len(HEADER_END)
        end = body.find(LINE_END + delimiter, start - len(LINE_END))
        if header_end < 0 or end < 0:
            raise BadEnvelope("the multipart body ends inside a field")
        headers = body[position:header_end]
        name, kind = FIELD_NAME.search(headers), CONTENT_TYPE.search(headers)
        if name is not None:
            yield FormField(
                name[1].decode("utf-8", "replace"),
                view[start : max(start, end)],
                kind[1].decode("latin-1") if kind else None,
                FILE_NAME.search(headers) is not None,
            )
        position = end + len(LINE_END)
    raise BadEnvelope(f"the multipart body has more than {MAX_FIELDS} fields")


FIELD = b"data="
PIECE_BYTES = 2**20
PERCENT = 0x25
# Byte -> its value as a hexadecimal digit, or NO_DIGIT.
NO_DIGIT = 0xFF
DIGITS = np.full(256, NO_DIGIT, np.uint8)
DIGITS[list(b"0123456789ABCDEF")] = range(16)
DIGITS[list(b"abcdef")] = range(10, 16)


def parse_url_form(body: Body) -> dict[str, bytes]:
    """Parses a form that begins with `data=`, whose value keeps its plus signs; as `read_form`."""
    end = body.find(b"&")
    rest = [] if end < 0 else read_form(body[end + 1 :])
    count = max(-1, end - len(FIELD))
    first = _decode_all(np.frombuffer(body, np.uint8, count, len(FIELD)))
    return keep_all([("data", first), *rest])


def read_form(body: Body) -> list[tuple[str, bytes]]:
    """Decodes all fields of a form sent as application/x-www-form-urlencoded.

    Raises:
        BadEnvelope: there are too many fields, or too many percent signs.
    """
    fields = bytes(body).replace(b"+", b" ").split(b"&", MAX_FIELDS)
    if len(fields) > MAX_FIELDS:
        raise BadEnvelope(f"the form has more than {MAX_FIELDS} fields")
    pairs = [field.partition(b"=") for field in fields if field]
    return [
        (_decode_text(name).decode("utf-8", "replace"), _decode_text(value))
        for name, _, value in pairs
    ]


def _decode_text(text: bytes) -> bytes:
    return _decode_all(np.frombuffer(text, np.uint8))


def _decode_all(data: np.ndarray) -> bytes:
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
