"""Makes camera-like photographs from the real ones that ship inside PyPI packages.

Nothing is downloaded: the sources are files of the scikit-image and scikit-learn wheels, most of
500 to 700 px. What a decoder costs depends on how much of a picture's energy lies in its finest
detail. Enlarging takes that away, and noise added instead is not like a camera's: a first version
of this module did so, and its files took 14 ns a byte to Huffman-decode where camera files take 10
to 12. So a picture larger than its source is the source at its own resolution, continued by
mirroring; a smaller one is a window of it, sharpened and with a sensor's noise, as a resize takes
both away.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from offpath.errors import ExpectedError

# (package, path inside it). Colour photographs only; all are listed in the wheels' RECORD.
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
# 8-bit units at mid grey; with these a 500 px picture has 55 kB at quality 80 to 90.
SHOT_NOISE = 8.0
READ_NOISE = 2.0
DEMOSAIC_BLUR_PX = 0.35


def find_sources() -> list[Path]:
    """Finds the source photographs of the installed packages, without importing them.

    Raises:
        ExpectedError: a package or one of its pictures is missing.
    """
    found = []
    for package, inside in SOURCES:
        spec = importlib.util.find_spec(package)
        folder = Path(spec.origin).parent if spec and spec.origin else None
        if folder is None or not (folder / inside).is_file():
            raise ExpectedError(
                f"no {inside!r} in package {package!r}, of which the workloads are made;"
                " install them with: pip install 'torchserve-offpath[bench]'"
            )
        found.append(folder / inside)
    return found


def make_photograph(
    source: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Image.Image:
    """A picture of `size` (width, height), different for each draw."""
    if size[0] > source.width or size[1] > source.height:
        return continue_mirrored(source, size, rng)
    picture = cut_window(source, size, rng).resize(size, Image.Resampling.LANCZOS)
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = picture.filter(ImageFilter.UnsharpMask(radius=2, percent=80, threshold=0))
    return add_sensor_noise(picture, rng)


def continue_mirrored(
    source: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Image.Image:
    """A window, anywhere, of the plane that the source and its mirror images cover."""
    pixels = np.asarray(source)
    rows = mirrored_indices(source.height, size[1], rng)
    columns = mirrored_indices(source.width, size[0], rng)
    return Image.fromarray(pixels[np.ix_(rows, columns)])


def mirrored_indices(
    length: int, count: int, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """`count` indices running to and fro over 0..length-1, from a random start."""
    to_and_fro = np.concatenate([np.arange(length), np.arange(length)[::-1]])
    start = int(rng.integers(0, 2 * length))
    return to_and_fro[(start + np.arange(count)) % (2 * length)]


def cut_window(
    source: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Image.Image:
    """A window of the wanted shape, 70-100 % of the largest that fits, somewhere in the source."""
    width, height = source.size
    shape = size[0] / size[1]
    share = rng.uniform(0.7, 1.0)
    cut_width = int(min(width, height * shape) * share)
    cut_height = int(cut_width / shape)
    left = int(rng.integers(0, width - cut_width + 1))
    top = int(rng.integers(0, height - cut_height + 1))
    return source.crop((left, top, left + cut_width, top + cut_height))


def add_sensor_noise(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Adds shot and read noise, the same for the three channels up to a small colour part."""
    pixels = np.asarray(picture, np.float32)
    height, width, _ = pixels.shape
    grain = rng.standard_normal((height, width, 1), np.float32)
    colour = rng.standard_normal((height, width, 3), np.float32)
    noise = 0.8 * grain + 0.6 * colour
    sigma = np.sqrt(READ_NOISE**2 + SHOT_NOISE**2 * pixels / 128)
    noisy = np.clip(pixels + sigma * noise, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).filter(ImageFilter.GaussianBlur(DEMOSAIC_BLUR_PX))
