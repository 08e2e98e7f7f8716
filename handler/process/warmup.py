"""The worker's own warm-up at `initialize`, with pictures made in memory, one of each decoder; and
how the requests are known with which `offpath serve` warms the server up: they are no predictions
that anybody asked for, so the prediction log has none of them."""

from __future__ import annotations

import hmac
import io
from collections.abc import Mapping

import numpy as np
import simplejpeg
from PIL import Image

# A word between the server's starter and its workers, new at each start: a client that could say
# it would keep its requests out of the log.
WARM_UP_VARIABLE = "OFFPATH_WARM_UP_KEY"
WARM_UP_HEADER = "x-offpath-warm-up"


def warm_up_payloads(size: int) -> list[bytes]:
    """A JPEG for libjpeg-turbo and a PNG for Pillow, larger than the model's square."""
    noise = np.random.default_rng(0).integers(
        0, 256, (size * 3, size * 4, 3), dtype=np.uint8
    )
    png = io.BytesIO()
    Image.fromarray(noise[:size, :size]).save(png, "PNG")
    return [simplejpeg.encode_jpeg(noise), png.getvalue()]


def is_warm_up(headers: Mapping[str, str], key: str | None) -> bool:
    """Whether a request carries the starter's word; never without one."""
    said = headers.get(WARM_UP_HEADER)
    # A form's field of that name is no text here: ts/service.py puts its headers there.
    return (
        bool(key)
        and isinstance(said, str)
        and hmac.compare_digest(said.encode(), str(key).encode())
    )
