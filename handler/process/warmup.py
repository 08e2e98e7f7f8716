"""Payloads for a worker's warm-up, and the mark of warm-up requests.

A worker warms up at `initialize` with images that it makes in memory, one for each decoder.
`offpath serve` warms up the server by requests. They carry a key, so that the prediction log can
leave them out.
"""

from __future__ import annotations

import hmac
import io
from collections.abc import Mapping

import numpy as np
import simplejpeg
from PIL import Image

from offpath.handler.wire_names import WARM_UP_HEADER


def warm_up_payloads(height: int, width: int) -> list[bytes]:
    """Returns a JPEG for libjpeg-turbo and a PNG for Pillow, at least as large as the input."""
    noise = np.random.default_rng(0).integers(0, 256, (height * 3, width * 4, 3), dtype=np.uint8)
    png = io.BytesIO()
    Image.fromarray(noise[:height, :width]).save(png, "PNG")
    return [simplejpeg.encode_jpeg(noise), png.getvalue()]


def is_warm_up(headers: Mapping[str, str], key: str | None) -> bool:
    """Returns True if a request carries the warm-up key; always False without a key."""
    sent = headers.get(WARM_UP_HEADER, "")
    return bool(key) and hmac.compare_digest(sent.encode(), str(key).encode())
