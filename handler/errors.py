"""Errors of the handler: of its settings, and of single items.

An `ItemError` belongs to one item of a batch: clients see its HTTP status, type and message and
nothing else. Details of bugs go to the worker's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offpath.handler.error_kinds import OF_ITEMS

KINDS = {kind.type: kind for kind in OF_ITEMS}


class ConfigError(ValueError):
    """A wrong `handler:` section. The worker refuses to load, and its log names the key."""


class ItemError(Exception):
    """One item cannot be answered; its neighbours in the batch can.

    Attributes:
        status: HTTP status of the reply, from error_kinds.py; a custom handler's subclass sets it.
        is_passing: the reply gets a `Retry-After`.
        message: what was wrong and what is accepted, for the body of the reply.
        fields: further fields of that body.
    """

    status = 400
    is_passing = False
    fields: Mapping[str, Any] = {}

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.status, _, _, cls.is_passing = KINDS[cls.__name__]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def type(self) -> str:
        """Name of the error for clients and metrics."""
        return type(self).__name__


def without_frames(error: ItemError) -> ItemError:
    """Cuts an error's references to the stack frames it passed, and returns the error.

    The frames hold the item, which holds the error. This cycle would keep each bad payload until
    the garbage collector's oldest generation runs, which is rare in a process with torch: in a long
    run each worker grew by 4 MB per minute.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class EmptyPayload(ItemError):
    """The request carries no image."""


class BadEnvelope(ItemError):
    """The JSON, form or base64 around the image cannot be read."""


class BodyGone(ItemError):
    """The front door has removed the body because its client left."""


class BodyUnreadable(ItemError):
    """The front door's file cannot be read; the client can do nothing about it."""


class BadTarget(ItemError):
    """The target class of an explanation is not a class of the model."""


class ExplanationsClosed(ItemError):
    """A request asks for an explanation, but the model's settings turn explanations off."""


class TooManyExplanations(ItemError):
    """Explanations have used their share of the worker's time."""


class ExplanationTooLarge(ItemError):
    """An explanation is larger than `max_response_bytes`, and sending it would end the worker."""


class PayloadTooLarge(ItemError):
    """The payload has more bytes than `max_payload_bytes`."""


class ImageTooLarge(ItemError):
    """The header states more pixels than `max_pixels`; nothing was decoded."""


class UnsupportedFormat(ItemError):
    """The bytes are in none of the accepted image formats."""


class UndecodableImage(ItemError):
    """The format is accepted, but data is broken or missing."""


class ImageTooCostly(ItemError):
    """The image was made to cost far more CPU time than its size justifies."""


class PostprocessFailed(ItemError):
    """The custom handler failed on this item; the worker's log has the cause."""


class BatchOutOfTime(ItemError):
    """The batch has used most of `responseTimeout`, so this item is given up."""


class DeadlineExceeded(ItemError):
    """The request cannot be answered in the time that it has; nothing was decoded."""


class BadTensor(ItemError):
    """An npy payload has not the model's shape or dtype, or was made for another model's input."""


class ModelOutOfMemory(ItemError):
    """The model ran out of memory on the item's batch; its worker goes on."""


class ModelFailed(ItemError):
    """The model failed on the item's batch; the worker's log has the cause."""
