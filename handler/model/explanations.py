"""`/explanations`: integrated gradients, most of a second each, kept to a share of a worker's time.

TorchServe queues them together with predictions and tells them by a header alone, which any client
can send: the setting `explanations` decides, not the path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import (
    BadTarget,
    ExplanationsClosed,
    ExplanationTooLarge,
    ItemError,
    TooManyExplanations,
)
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.normalise import Normaliser
from offpath.handler.pipeline import Item, without_frames
from offpath.handler.request.body_from_front_door import fields_of
from offpath.handler.response import Reply, encode_error, encode_json

# After an explanation none begins for so many times as long as it took: predictions keep more than
# 60 % of a worker. Beside it no other one of the same batch.
PAUSE_FACTOR = 3.0
HEADER = "explain"

# Item's place in the batch, class -> attributions as nested lists.
Attribute = Callable[[int, int], list[Any]]


def is_explanation(headers: Mapping[str, Any]) -> bool:
    """Whether TorchServe, or a client that plays it, asks for an explanation."""
    return headers.get(HEADER) == "True"


class Explainer:
    """Decides which explanations are made, and makes them.

    Args:
        attribute: explains one picture of the batch.
        is_open: the setting `explanations`.
        max_bytes: of one reply; over it TorchServe ends the worker.
        classes: of the model.
        clock: seconds; for tests.
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

    def explain_item(self, item: Item, row: Mapping[str, Any]) -> Reply:
        """Explains the picture of an item; an error becomes the item's own."""
        if item.index is None:
            raise RuntimeError("an item without a picture cannot be explained")
        try:
            return self.explain(item.index, row)
        except ItemError as error:
            item.error = without_frames(error)
            return encode_error(error)

    def explain(self, index: int, row: Mapping[str, Any]) -> Reply:
        """Explains a picture of the batch.

        Raises:
            ItemError: closed, too many, an unknown class, or a reply that is too large.
        """
        if not self._is_open:
            raise ExplanationsClosed("this model answers no explanations")
        target = parse_target(fields_of(row).get("target"), self._classes)
        if self._clock() < self._next_s:
            raise TooManyExplanations("predictions come first; come again in a second")
        begin_s = self._clock()
        try:
            reply = encode_json(self._attribute(index, target))
        finally:
            end_s = self._clock()
            self._next_s = end_s + PAUSE_FACTOR * (end_s - begin_s)
        if len(reply.body) > self._max_bytes:
            raise ExplanationTooLarge(
                f"{len(reply.body)} bytes; at most {self._max_bytes} can be sent"
            )
        return reply


def make_attribute(
    config: HandlerConfig,
    runner: BatchRunner,
    get_insights: Callable[[torch.Tensor, Any, int], list[Any]],
) -> Attribute:
    """Attributions of a picture of the runner's batch by TorchServe's `get_insights`."""
    normaliser = Normaliser(config.mean, config.std, config.image_size, runner.device)

    def attribute(index: int, target: int) -> list[Any]:
        inputs = normaliser(runner.picture(index))
        attributions: list[Any] = get_insights(inputs, None, target)[0]
        return attributions

    return attribute


def parse_target(value: object, classes: int) -> int:
    """The class to explain, from the form field `target`; 0 where it is missing, as stock does.

    Raises:
        BadTarget: not an integer, or not one of the model's `classes`.
    """
    if not value:
        return 0
    is_raw = isinstance(value, (bytes, bytearray, memoryview))
    text = bytes(value).decode("ascii", "replace") if is_raw else value  # type: ignore
    try:
        target = int(str(text))
    except ValueError as error:
        raise BadTarget("the field `target` must be a class index") from error
    if not 0 <= target < classes:
        raise BadTarget(f"the field `target` must be from 0 to {classes - 1}")
    return target
