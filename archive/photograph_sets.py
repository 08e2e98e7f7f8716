"""Photographs that calibrate int8, and others that an engine's answers are checked on.

The handler's own code decodes and resizes them, with the settings of the archive.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offpath.archive.photographs import BUNDLED, cut_windows
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decode import Pixels, decode_image
from offpath.handler.image.torch_transform import transform_with_torch
from offpath.handler.image.transform import transform_image

# The most files taken from a folder, spread evenly over the names. NNCF's own default is 300.
MAX_IMAGES = 300
# The most photographs held out; the parity set is chosen from them.
MAX_HELD_OUT = 48


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
    """Loads the user's photographs, or windows of the bundled ones.

    Args:
        folder: the user's photographs; None for the bundled ones.
        to_calibrate: refuses the bundled ones, which are enough to check answers, but too few to
            calibrate int8.

    Raises:
        WrongOption: there is no such folder, or it holds no image.
    """
    if folder is not None:
        return _load_folder(folder, config)
    if to_calibrate:
        raise WrongOption("int8 needs photographs like those that clients send: --calibrate FOLDER")
    windows = cut_windows(sorted(BUNDLED.glob("*.jpg")))
    every = np.stack([decode_photograph(jpeg, config) for jpeg in windows])
    return PhotographSets(every, every)


def _load_folder(folder: Path, config: HandlerConfig) -> PhotographSets:
    if not folder.is_dir():
        raise WrongOption(f"--calibrate {str(folder)!r}: no such folder")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    spread = files[:: -(-len(files) // MAX_IMAGES) or 1]
    images = []
    for path in spread:
        with contextlib.suppress(ItemError):  # folders hold notes and label files too
            images.append(decode_photograph(path.read_bytes(), config))
    if not images:
        raise WrongOption(
            f"--calibrate {str(folder)!r}: no image there can be decoded; expected a folder of "
            "photographs like those that clients will send (JPEG, PNG, WebP, GIF, BMP, TIFF)"
        )
    if len(images) == 1:
        return PhotographSets(np.stack(images), np.stack(images))
    step = max(2, -(-len(images) // MAX_HELD_OUT))
    calibration = [p for index, p in enumerate(images) if index % step]
    return PhotographSets(np.stack(calibration), np.stack(images[::step]))


def decode_photograph(payload: bytes, config: HandlerConfig) -> Pixels:
    """Decodes and resizes as the handler's pipeline does."""
    exact = config.decode == "exact"
    transform = transform_image if exact else transform_with_torch
    image = decode_image(payload, config.decode_options)
    return transform(image, config.input_geometry)
