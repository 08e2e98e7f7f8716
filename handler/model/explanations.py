"""Answers `/explanations` with integrated gradients, within a limited share of a worker's time.

One explanation takes up to a second. Explanations wait in one queue with predictions, marked only
by a header, so the setting `explanations` decides whether they are made, and not the path.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.contract import Item, Reply
from offpath.handler.errors import (
    BadTarget,
    ExplanationsClosed,
    ExplanationTooLarge,
    TooManyExplanations,
)
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.normalise import Normaliser
from offpath.handler.reply import encode_json

# After an explanation, the next one waits for this many times its duration, so that predictions
# keep more than 60 % of a worker. At most one explanation is made per batch.
PAUSE_FACTOR = 3.0

# Maps (place in the batch, class) to attributions as nested lists.
Attribute = Callable[[int, int], list[Any]]


class Explainer:
    """Makes explanations as far as the settings and the worker's time allow.

    Args:
        is_open: the setting `explanations`.
        max_bytes: limit on one reply; TorchServe ends a worker that exceeds it.
    """

    def __init__(
        self,
        attribute: Attribute,
        is_open: bool,
        max_bytes: int,
        classes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attribute = attribute
        self._is_open, self._max_bytes, self._classes = is_open, max_bytes, classes
        self._clock = clock
        self._next_s = clock()

    def explain(self, item: Item) -> Reply:
        """Explains one image of the batch.

        Raises:
            ItemError: explanations are closed or too many, the class is unknown, or the reply is
                too large.
        """
        if item.index is None:
            raise RuntimeError("an item without an image cannot be explained")
        if not self._is_open:
            raise ExplanationsClosed("explanations are turned off for this model")
        target = parse_target(item.target, self._classes)
        if self._clock() < self._next_s:
            raise TooManyExplanations(
                "explanations have used their share of time; try again in a second"
            )
        begin_s = self._clock()
        try:
            reply = encode_json(self._attribute(item.index, target))
        finally:
            end_s = self._clock()
            self._next_s = end_s + PAUSE_FACTOR * (end_s - begin_s)
        if len(reply.body) > self._max_bytes:
            raise ExplanationTooLarge(
                f"the explanation has {len(reply.body)} bytes; at most {self._max_bytes} can be "
                "sent"
            )
        return reply


def integrate_gradients(
    model: torch.nn.Module, config: HandlerConfig, runner: BatchRunner
) -> Attribute:
    """Returns a function that explains images of the runner's batch, as TorchServe does.

    Its attributions are nested lists [channels][height][width]; the channels are in the order of
    the setting `channel_order`.
    """
    # Imported for the first explanation that may be made: captum costs a worker seconds and memory.
    gradients = functools.cache(lambda: import_module("captum.attr").IntegratedGradients(model))
    normaliser = Normaliser(config, runner.device)

    def attribute(index: int, target: int) -> list[Any]:
        inputs = normaliser(runner.image(index))
        # 15 steps, as in ts/torch_handler/vision_handler.py.
        found: list[Any] = gradients().attribute(inputs, target=target, n_steps=15).tolist()[0]
        return found

    return attribute


def parse_target(value: object, classes: int) -> int:
    """Reads the class to explain from the form field `target`; 0 without one, as TorchServe does.

    Raises:
        BadTarget: the value is not an integer from 0 to `classes` - 1.
    """
    if not value:
        return 0
    is_raw = isinstance(value, (bytes, bytearray, memoryview))
    text = bytes(value).decode("ascii", "replace") if is_raw else value  # type: ignore
    try:
        target = int(str(text))
    except ValueError as error:
        raise BadTarget("the form field `target` must be a class index") from error
    if not 0 <= target < classes:
        raise BadTarget(f"the form field `target` must be from 0 to {classes - 1}")
    return target
