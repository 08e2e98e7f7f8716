"""The accepted image formats, declared once: a further one is a line here.

What Pillow may try is bounded by this list: no EPS (runs Ghostscript), no rarely tested parsers.
"""

from __future__ import annotations

# Imported here, not at the first such request: a plugin's import opens files. Pillow imports the
# others by itself; MPO is what it makes of a JPEG with a second picture inside.
from PIL import MpoImagePlugin, TiffImagePlugin, WebPImagePlugin  # noqa: F401

# Pillow's name of a format -> what its files begin with.
FORMATS: dict[str, tuple[bytes, ...]] = {
    "JPEG": (b"\xff\xd8",),
    "PNG": (b"\x89PNG",),
    "WEBP": (b"RIFF",),
    "GIF": (b"GIF8",),
    "BMP": (b"BM",),
    # Little and big endian.
    "TIFF": (b"II*\x00", b"MM\x00*"),
}
MAGICS = tuple(magic for magics in FORMATS.values() for magic in magics)
