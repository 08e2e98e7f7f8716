"""Photographs that int8 is calibrated on and that the parity gate compares answers on.

Two sets without a photograph in common, as the handler would decode and resize them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from offpath.archive.photographs import (
    BUNDLED,
    cut_window,
    encode_jpeg,
    find_sources,
)
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError, MissingPackage, WrongOption
from offpath.handler.image.decode import Pixels, decode_image
from offpath.handler.image.resample import transform_with_torch
from offpath.handler.image.transform import transform_image

# Of a folder's photographs, spread evenly over the names. NNCF's own default is 300.
MOST_PICTURES = 300
# From how many held out the parity set is chosen.
MOST_HELD_OUT = 48
# Of the photographs that ship in PyPI packages: held out, by the file's stem. The others calibrate,
# among them both of a stereo pair.
HELD_OUT = ("astronaut", "china", "coffee", "hubble_deep_field", "rocket")
WINDOWS = 8
WINDOW_SHAPE = (4, 3)
JPEG_QUALITY = 90
SEED = 0


@dataclass(frozen=True)
class PhotographSets:
    """Photographs as the model's uint8 squares, [n, image_size, image_size, channels] each.

    Attributes:
        calibration: shown to the quantiser.
        held_out: not shown to it; the parity set is chosen from them. A folder with one photograph
            has it in both; so do the bundled ones, which calibrate nothing.
    """

    calibration: Pixels
    held_out: Pixels


def load_photographs(
    folder: Path | None, config: HandlerConfig, to_calibrate: bool = False
) -> PhotographSets:
    """The user's photographs, or windows of those that ship in scikit-image and scikit-learn.

    Args:
        to_calibrate: the few that are bundled do not stand in for those: they are too few.

    Raises:
        WrongOption: no such folder, no picture in it, or the packages are not installed.
    """
    if folder is not None:
        return _load_folder(folder, config)
    try:
        return _load_installed(config)
    except MissingPackage as error:
        if to_calibrate:
            raise WrongOption(
                f"{error}; or pass photographs of your own: --calibrate FOLDER"
            ) from error
    return _load_bundled(config)


def _load_folder(folder: Path, config: HandlerConfig) -> PhotographSets:
    if not folder.is_dir():
        raise WrongOption(f"--calibrate {str(folder)!r}: no such folder")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    decoded = (_try_to_decode(path.read_bytes(), config) for path in _spread(files))
    pictures = [picture for picture in decoded if picture is not None]
    if not pictures:
        raise WrongOption(
            f"--calibrate {str(folder)!r} holds no picture that can be decoded; expected a folder "
            "of photographs like those that will be sent (JPEG, PNG, WebP, GIF, BMP, TIFF)"
        )
    if len(pictures) == 1:
        return PhotographSets(np.stack(pictures), np.stack(pictures))
    step = max(2, -(-len(pictures) // MOST_HELD_OUT))
    calibration = [p for index, p in enumerate(pictures) if index % step]
    return PhotographSets(np.stack(calibration), np.stack(pictures[::step]))


def _spread(files: list[Path]) -> list[Path]:
    return files[:: -(-len(files) // MOST_PICTURES) or 1]


def _load_installed(config: HandlerConfig) -> PhotographSets:
    calibration: list[Pixels] = []
    held_out: list[Pixels] = []
    for index, path in enumerate(find_sources()):
        chosen = held_out if path.stem in HELD_OUT else calibration
        chosen.extend(_decode(jpeg, config) for jpeg in _cut_windows(path, index))
    return PhotographSets(np.stack(calibration), np.stack(held_out))


def _load_bundled(config: HandlerConfig) -> PhotographSets:
    windows = np.stack(
        [
            _decode(jpeg, config)
            for index, path in enumerate(sorted(BUNDLED.glob("*.jpg")))
            for jpeg in _cut_windows(path, index)
        ]
    )
    return PhotographSets(windows, windows)


def _cut_windows(path: Path, index: int) -> Iterator[bytes]:
    """Seeded windows of a photograph, as JPEG."""
    rng = np.random.default_rng((SEED, index))
    with Image.open(path) as file:
        source = file.convert("RGB")
    for _ in itertools.repeat(None, WINDOWS):
        yield encode_jpeg(cut_window(source, WINDOW_SHAPE, rng), JPEG_QUALITY)


def _try_to_decode(payload: bytes, config: HandlerConfig) -> Pixels | None:
    """None for a file that is no picture: folders hold notes and label files too."""
    try:
        return _decode(payload, config)
    except ItemError:
        return None


def _decode(payload: bytes, config: HandlerConfig) -> Pixels:
    """As pipeline.py does it."""
    exact = config.decode == "exact"
    transform = transform_image if exact else transform_with_torch
    image = decode_image(payload, config.decode_options)
    return transform(image, config.square)
