"""A payload -> the model's uint8 square; what decodes, in a worker or before one."""

from __future__ import annotations

import time

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels, decode_image
from offpath.handler.image.resample import transform_with_torch
from offpath.handler.image.transform import transform_image
from offpath.handler.request.npy import is_npy, read_npy
from offpath.handler.request.payload import Payload


class SquareMaker:
    """Payload -> the model's uint8 square, by an archive's settings; called from any thread."""

    def __init__(self, config: HandlerConfig) -> None:
        self._options, self._square = config.decode_options, config.square
        is_exact = config.decode == "exact"
        self._transform = transform_image if is_exact else transform_with_torch

    def make(self, payload: Payload) -> tuple[Pixels, float]:
        """The square, and when decoding was done (`perf_counter`): the rest was the transform.

        Raises:
            ItemError: no picture, or one that costs too much.
        """
        if is_npy(payload):
            pixels = read_npy(payload, self._square.size, self._square.channels)
            return pixels, time.perf_counter()
        image = decode_image(payload, self._options)
        decoded = time.perf_counter()
        return self._transform(image, self._square), decoded
