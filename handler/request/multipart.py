"""Parses a multipart/form-data body into views of it, without a copy.

TorchServe parses forms itself, but behind the front door it does not see them.
Syntax: RFC 7578 and RFC 2046, section 5.1.
"""

from __future__ import annotations

import mmap
import re

from offpath.handler.errors import BadEnvelope

# Types with a method `find`, which a memoryview lacks.
Body = bytes | bytearray | mmap.mmap

BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;",]{1,70}))', re.IGNORECASE)
# Neither `filename=` nor the `name=` that some clients put beside a part's content type.
FIELD_NAME = re.compile(rb'content-disposition:[^\r\n]*?[;\s]name="?([^";\r\n]*)"?', re.IGNORECASE)
MAX_FIELDS = 32
MAX_HEADER_BYTES = 4096
LINE_END = b"\r\n"
HEADER_END = b"\r\n\r\n"


def parse_multipart(body: Body, content_type: str) -> dict[str, memoryview]:
    """Parses a form; of two fields with the same name the last counts, as with TorchServe.

    Raises:
        BadEnvelope: the boundary is missing, a part has no end, or there are too many parts.
    """
    match = BOUNDARY.search(content_type)
    if match is None:
        raise BadEnvelope("the multipart content type names no boundary")
    delimiter = b"--" + (match[1] or match[2]).encode()
    view = memoryview(body)
    fields: dict[str, memoryview] = {}
    position = body.find(delimiter)
    for _ in range(MAX_FIELDS):
        position += len(delimiter)
        if position < len(delimiter) or body[position : position + 2] != LINE_END:
            # `--` follows the last part; anything else is not a delimiter.
            return fields
        # In a part without headers the empty line begins with the delimiter's own line end.
        header_end = body.find(HEADER_END, position, position + MAX_HEADER_BYTES)
        start = header_end + len(HEADER_END)
        end = body.find(LINE_END + delimiter, start - len(LINE_END))
        if header_end < 0 or end < 0:
            raise BadEnvelope("the multipart body ends inside a field")
        name = FIELD_NAME.search(body[position:header_end])
        if name is not None:
            fields[name[1].decode("utf-8", "replace")] = view[start : max(start, end)]
        position = end + len(LINE_END)
    raise BadEnvelope(f"the multipart body has more than {MAX_FIELDS} fields")
