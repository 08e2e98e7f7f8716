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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError, MissingPackage, WrongOption
from offpath.handler.image.decode import Pixels, decode_image
from offpath.handler.image.torch_transform import transform_with_torch
from offpath.handler.image.transform import transform_image

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
# In 8-bit units at mid grey. With this noise a 2048 px JPEG of quality 94 has 1.2 MB, like those
# of phones.
SHOT_NOISE = 8.0
READ_NOISE = 2.0
DEMOSAIC_BLUR_PX = 0.35


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


def make_photograph(
    source: Image.Image, size: tuple[int, int], rng: np.random.Generator
) -> Image.Image:
    """Cuts a random window of the source, scales it to `size` (width, height) and adds noise.

    Cost: about 0.4 s for 2048x1365.
    """
    picture = cut_window(source, size, rng).resize(size, Image.Resampling.LANCZOS)
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = picture.filter(ImageFilter.UnsharpMask(radius=2, percent=80, threshold=0))
    return add_sensor_noise(picture, rng)


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


def add_sensor_noise(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Adds shot and read noise; most of it is the same in the three channels."""
    pixels = np.asarray(picture, np.float32)
    height, width, _ = pixels.shape
    grain = rng.standard_normal((height, width, 1), np.float32)
    colour = rng.standard_normal((height, width, 3), np.float32)
    noise = 0.8 * grain + 0.6 * colour
    sigma = np.sqrt(READ_NOISE**2 + SHOT_NOISE**2 * pixels / 128)
    noisy = np.clip(pixels + sigma * noise, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).filter(ImageFilter.GaussianBlur(DEMOSAIC_BLUR_PX))


def encode_jpeg(picture: Image.Image, quality: int) -> bytes:
    """Encodes a baseline JPEG with 4:2:0, the default of phones and cameras."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()


# The most files taken from a folder, spread evenly over the names. NNCF's own default is 300.
MOST_PICTURES = 300
# The most photographs held out; the parity set is chosen from them.
MOST_HELD_OUT = 48
# File stems held out of the photographs in PyPI packages. The others calibrate; both pictures of
# the stereo pair are among them.
HELD_OUT = ("astronaut", "china", "coffee", "hubble_deep_field", "rocket")
WINDOWS = 8
WINDOW_SHAPE = (4, 3)
JPEG_QUALITY = 90
SEED = 0


@dataclass(frozen=True)
class PhotographSets:
    """Two sets of photographs, each uint8 [n, height, width, channels].

    A folder with one photograph has it in both sets. So do the bundled photographs, which
    calibrate nothing.

    Attributes:
        calibration: photographs that the quantiser sees.
        held_out: photographs that it does not see.
    """

    calibration: Pixels
    held_out: Pixels


def load_photographs(
    folder: Path | None, config: HandlerConfig, to_calibrate: bool = False
) -> PhotographSets:
    """Loads the user's photographs, or windows of those that scikit-image and scikit-learn ship.

    Args:
        folder: the user's photographs; None for the shipped ones.
        to_calibrate: without those packages raise an error; the few bundled photographs are
            enough to check answers, but too few to calibrate int8.

    Raises:
        WrongOption: there is no such folder, it holds no image, or the packages are missing.
    """
    if folder is not None:
        return _load_folder(folder, config)
    try:
        return _load_installed(config)
    except MissingPackage as error:
        if to_calibrate:
            raise WrongOption(
                f"{error}; or pass your own photographs: --calibrate FOLDER"
            ) from error
    windows = _load_windows(sorted(BUNDLED.glob("*.jpg")), config)
    every = np.stack([window for _, window in windows])
    return PhotographSets(every, every)


def _load_folder(folder: Path, config: HandlerConfig) -> PhotographSets:
    if not folder.is_dir():
        raise WrongOption(f"--calibrate {str(folder)!r}: no such folder")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    spread = files[:: -(-len(files) // MOST_PICTURES) or 1]
    decoded = (_try_to_decode(path.read_bytes(), config) for path in spread)
    pictures = [picture for picture in decoded if picture is not None]
    if not pictures:
        raise WrongOption(
            f"--calibrate {str(folder)!r}: no image there can be decoded; expected a folder of "
            "photographs like those that clients will send (JPEG, PNG, WebP, GIF, BMP, TIFF)"
        )
    if len(pictures) == 1:
        return PhotographSets(np.stack(pictures), np.stack(pictures))
    step = max(2, -(-len(pictures) // MOST_HELD_OUT))
    calibration = [p for index, p in enumerate(pictures) if index % step]
    return PhotographSets(np.stack(calibration), np.stack(pictures[::step]))


def _load_installed(config: HandlerConfig) -> PhotographSets:
    calibration: list[Pixels] = []
    held_out: list[Pixels] = []
    for path, window in _load_windows(find_sources(), config):
        chosen = held_out if path.stem in HELD_OUT else calibration
        chosen.append(window)
    return PhotographSets(np.stack(calibration), np.stack(held_out))


def _load_windows(paths: list[Path], config: HandlerConfig) -> Iterator[tuple[Path, Pixels]]:
    """Yields windows of each photograph, as the handler decodes their JPEGs; seeded."""
    for index, path in enumerate(paths):
        rng = np.random.default_rng((SEED, index))
        with Image.open(path) as file:
            source = file.convert("RGB")
        for _ in range(WINDOWS):
            window = cut_window(source, WINDOW_SHAPE, rng)
            yield path, decode_photograph(encode_jpeg(window, JPEG_QUALITY), config)


def _try_to_decode(payload: bytes, config: HandlerConfig) -> Pixels | None:
    """Returns None for a file that is no image: folders hold notes and label files too."""
    try:
        return decode_photograph(payload, config)
    except ItemError:
        return None


def decode_photograph(payload: bytes, config: HandlerConfig) -> Pixels:
    """Decodes and resizes as the handler's pipeline does."""
    exact = config.decode == "exact"
    transform = transform_image if exact else transform_with_torch
    image = decode_image(payload, config.decode_options)
    return transform(image, config.input_geometry)
