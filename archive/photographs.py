"""Makes camera-like photographs from real ones that ship inside PyPI packages.

Nothing is downloaded: the sources are files of the scikit-image and scikit-learn wheels. They are
small (at most 1411 px) and smooth when enlarged, and an enlarged smooth photograph compresses to a
fraction of what a camera writes. So each one is sharpened and gets what a sensor adds: shot noise
that grows with the light, read noise, and the slight blur of demosaicing. The cost of decoding a
JPEG depends on the number of bits to Huffman-decode, and so on the file size. `workload.py` holds
the mean file size by choosing the JPEG quality.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from offpath.errors import MissingPackage

# (package, path inside it). Only colour photographs; all are listed in the wheels' RECORD.
SOURCES = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/motorcycle_right.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)
# A few small photographs that every installation has.
BUNDLED = Path(__file__).parent / "bundled"
# The one that servers are tried with.
SAMPLE = BUNDLED / "espresso.jpg"
# In 8-bit units at mid grey. With this noise a 2048 px JPEG of quality 94 has 1.2 MB, like those
# of phones.
SHOT_NOISE = 8.0
READ_NOISE = 2.0
DEMOSAIC_BLUR_PX = 0.35
# What `cut_windows` makes of each photograph.
WINDOWS = 8
WINDOW_SHAPE = (4, 3)
WINDOW_QUALITY = 90
SEED = 0


def find_sources() -> list[Path]:
    """Finds the source photographs of the installed packages, without importing them.

    Raises:
        MissingPackage: a package or one of its photographs is missing.
    """
    found = []
    for package, inside in SOURCES:
        spec = importlib.util.find_spec(package)
        folder = Path(spec.origin).parent if spec and spec.origin else None
        if folder is None or not (folder / inside).is_file():
            raise MissingPackage(f"{package} (its photograph {inside})", "bench")
        found.append(folder / inside)
    return found


def cut_windows(paths: list[Path]) -> Iterator[bytes]:
    """Yields windows of each photograph as JPEGs; seeded."""
    for index, path in enumerate(paths):
        rng = np.random.default_rng((SEED, index))
        with Image.open(path) as file:
            source = file.convert("RGB")
        for _ in range(WINDOWS):
            yield encode_jpeg(cut_window(source, WINDOW_SHAPE, rng), WINDOW_QUALITY)


def make_photograph(
    source: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Image.Image:
    """Cuts a random window of the source, scales it to `size` (width, height) and adds noise.

    Cost: about 0.4 s for 2048x1365.
    """
    image = cut_window(source, size, rng).resize(size, Image.Resampling.LANCZOS)
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.filter(ImageFilter.UnsharpMask(radius=2, percent=80, threshold=0))
    return add_sensor_noise(image, rng)


def cut_window(source: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Cuts a window in the proportions of `size`, 70-100 % of the largest that fits, at random."""
    width, height = source.size
    shape = size[0] / size[1]
    share = rng.uniform(0.7, 1.0)
    cut_width = int(min(width, height * shape) * share)
    cut_height = int(cut_width / shape)
    left = int(rng.integers(0, width - cut_width + 1))
    top = int(rng.integers(0, height - cut_height + 1))
    return source.crop((left, top, left + cut_width, top + cut_height))


def add_sensor_noise(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Adds shot and read noise; most of it is the same in the three channels."""
    pixels = np.asarray(image, np.float32)
    height, width, _ = pixels.shape
    grain = rng.standard_normal((height, width, 1), np.float32)
    colour = rng.standard_normal((height, width, 3), np.float32)
    noise = 0.8 * grain + 0.6 * colour
    sigma = np.sqrt(READ_NOISE**2 + SHOT_NOISE**2 * pixels / 128)
    noisy = np.clip(pixels + sigma * noise, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).filter(ImageFilter.GaussianBlur(DEMOSAIC_BLUR_PX))


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """Encodes a baseline JPEG with 4:2:0, the default of phones and cameras."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()
