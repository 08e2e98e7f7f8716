"""The accepted image formats. To accept another format, add a line to FORMATS.

The list also limits what Pillow may try: no EPS, which runs Ghostscript, and no rarely tested
parsers.
"""

from __future__ import annotations

# Imported at start and not at the first such request, because a plugin's import opens files. Pillow
# imports the other plugins by itself. It reads a JPEG with a second image inside as MPO.
from PIL import MpoImagePlugin, TiffImagePlugin, WebPImagePlugin  # noqa: F401

# The bytes of an image file, or of whatever a client sent instead.
Payload = bytes | bytearray | memoryview
# Pillow's name of a format -> the first bytes of its files.
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
