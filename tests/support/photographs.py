"""Real photographs for tests: files of the scikit-image and scikit-learn wheels, and crops of them.

    from tests.support.photographs import PHOTOGRAPHS, encode, find_photograph

Files are opened on first use; nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

# A package with the folder in it, and files.
FILES = {
    "skimage/data": """astronaut.png brick.png camera.png cell.png chelsea.png clock_motion.png
        coffee.png coins.png grass.png gravel.png ihc.png moon.png motorcycle_left.png
        motorcycle_right.png page.png hubble_deep_field.jpg retina.jpg rocket.jpg""",
    "sklearn/datasets/images": "china.jpg flower.jpg",
}
# Name of the crop -> file, (left, top, right, bottom). They do not overlap one another.
CROPS = {
    "hubble_deep_field-upper-left": ("hubble_deep_field", (0, 0, 420, 380)),
    "hubble_deep_field-lower-right": ("hubble_deep_field", (560, 470, 1000, 870)),
    "china-left": ("china", (0, 90, 300, 427)),
    "china-right": ("china", (340, 90, 640, 427)),
    "retina-optic-disc": ("retina", (150, 450, 650, 950)),
    "coffee-cup": ("coffee", (120, 20, 440, 340)),
}


@dataclass(frozen=True)
class Photograph:
    """One photograph.

    Attributes:
        name: unique; the file's stem and the name of the crop.
        path: the file.
        box: the crop (left, top, right, bottom) in pixels, or None for all of it.
    """

    name: str
    path: Path
    box: tuple[int, int, int, int] | None = None

    @cached_property
    def image(self) -> Image.Image:
        """The pixels as stored (RGB or L); decoded at first use. Do not change it in place."""
        with Image.open(self.path) as image:
            image.load()
            return image if self.box is None else image.crop(self.box)

    @cached_property
    def rgb(self) -> Image.Image:
        """The same image in RGB."""
        return self.image.convert("RGB")


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    """Encodes `image` in one of Pillow's formats."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def find_photograph(name: str) -> Photograph:
    """Returns the photograph called `name`."""
    return {photograph.name: photograph for photograph in PHOTOGRAPHS}[name]


def _list_photographs() -> list[Photograph]:
    whole = {}
    for place, names in FILES.items():
        package, _, inside = place.partition("/")
        folder = Path(str(importlib.util.find_spec(package).origin)).parent / inside
        for path in map(folder.joinpath, names.split()):
            whole[path.stem] = Photograph(path.stem, path)
    crops = [Photograph(name, whole[source].path, box) for name, (source, box) in CROPS.items()]
    return [*whole.values(), *crops]


PHOTOGRAPHS: list[Photograph] = _list_photographs()
