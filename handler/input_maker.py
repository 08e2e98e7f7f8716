"""Makes the model's uint8 input from a payload."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path

import orjson

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import BadTensor
from offpath.handler.image.decode import Pixels, decode_image
from offpath.handler.image.decode_cost import UsualCost
from offpath.handler.image.formats import Payload
from offpath.handler.image.torch_transform import transform_with_torch
from offpath.handler.image.transform import transform_image
from offpath.handler.request.npy import NPY_MAGIC, read_npy

MAPPED_LIBTIFF = re.compile(r" (/\S*libtiff\S*)$", re.MULTILINE)


class InputMaker:
    """Decodes and resizes payloads as an archive's settings say; safe to call from any thread.

    Args:
        leaves_costly: images that cost much more than others are left.
    """

    def __init__(self, config: HandlerConfig, leaves_costly: bool = False) -> None:
        self._options, self._geometry = config.decode_options, config.input_geometry
        if leaves_costly:
            self._options = replace(self._options, check_cost=UsualCost().check)
        self._settings = config.thin_settings
        self._made_for = orjson.dumps(self._settings)
        is_exact = config.decode == "exact"
        self._transform = transform_image if is_exact else transform_with_torch

    def make(self, payload: Payload) -> tuple[Pixels, float]:
        """Returns the model's input and the `perf_counter` time at which decoding ended.

        The pixels are uint8 [height, width, channels].

        Raises:
            ItemError: the payload is no image, is left, or costs too much to decode.
        """
        if payload[:6] == NPY_MAGIC:
            try:
                pixels = read_npy(payload, self._geometry.shape, self._made_for)
            except BadTensor as error:
                error.fields = {"input": self._settings}
                raise
            return pixels, time.perf_counter()
        image = decode_image(payload, self._options)
        decoded = time.perf_counter()
        return self._transform(image, self._geometry), decoded


def silence_decoders() -> None:
    """Turns off the decoders' warnings about a client's data; the reply says what is wrong.

    Call this once when a server starts. Each warning would be a line in the log, and the first of
    its kind would open the source file that it quotes.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # npy headers written by Python 2, or with a backslash, which Python 3.12 takes for an escape.
    warnings.filterwarnings("ignore", message=r"Reading `\.npy`")
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
    # torch, about files that nvjpeg only reads.
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    _silence_libtiff()


def _silence_libtiff() -> None:
    """Stops libtiff from writing its errors to standard error, past Python.

    Pillow silences only libtiff's warnings. The library is found among the files that Pillow has
    loaded, because a wheel's copy has a hash in its name.
    """
    with contextlib.suppress(OSError, AttributeError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        for path in set(MAPPED_LIBTIFF.findall(maps)):
            ctypes.CDLL(path).TIFFSetErrorHandler(None)
