"""Decodes text that holds an image, and recognises compressed bodies.

The service (serving/service/kserve.py) uses this too, before an archive is loaded.
"""

from __future__ import annotations

import base64
import codecs
import re

WHITE_SPACE = b" \t\n\r\v\f"
# What editors and PowerShell put before text.
ORDER_MARK = codecs.BOM_UTF8
DATA_URL = re.compile(rb"\s*data:[^,]{0,200};base64,", re.IGNORECASE)
# From the URL-safe alphabet to the usual one (RFC 4648, section 5).
USUAL = bytes.maketrans(b"-_", b"+/")
# How compressed files begin.
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def decode_base64(text: bytes) -> bytes:
    """Decodes base64 in either alphabet, padded or not, in lines or not, or in a data URL.

    Raises:
        ValueError: the text is something else.
    """
    text = text.removeprefix(ORDER_MARK)
    url = DATA_URL.match(text)
    text = text[url.end() if url else 0 :].translate(USUAL, WHITE_SPACE)
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)


def name_compression(body: bytes) -> str:
    """Returns what is wrong with a compressed body, and the cure; empty for other bodies."""
    names = [name for magic, name in COMPRESSED.items() if body.startswith(magic)]
    return f"the body is compressed by {names[0]}; send it as it is" if names else ""
