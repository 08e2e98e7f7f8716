"""Pictures for the warm-up at `initialize`: made in memory, one of each decoder."""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from PIL import Image


def warm_up_payloads(size: int) -> list[bytes]:
    """A JPEG for libjpeg-turbo and a PNG for Pillow, larger than the model's square."""
    noise = np.random.default_rng(0).integers(
        0, 256, (size * 3, size * 4, 3), dtype=np.uint8
    )
    png = io.BytesIO()
    Image.fromarray(noise[:size, :size]).save(png, "PNG")
    return [simplejpeg.encode_jpeg(noise), png.getvalue()]
