"""Errors of the handler, and of everything above it.

An `ItemError` belongs to one item of a batch: clients see its HTTP status, type, phrase and message
and nothing else. Details of bugs go to the worker's log.
"""

from __future__ import annotations


class ExpectedError(Exception):
    """A failure that the user can fix; the message says what was wrong and what to do."""


class WrongOption(ExpectedError):
    """An option that the user passed is wrong, or a file that the option names."""


class MissingPackage(ExpectedError):
    """A package from one of the distribution's extras is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'torchserve-offpath[{extra}]'")


class ConfigError(ValueError):
    """A wrong `handler:` section. The worker refuses to load, and its log names the key."""


class ItemError(Exception):
    """One item cannot be answered; its neighbours in the batch can.

    Attributes:
        status: HTTP status of the reply.
        phrase: reason phrase. It must be ASCII, because TorchServe's protocol counts characters
            but sends bytes (ts/protocol/otf_message_handler.py): anything else hangs the worker.
        message: what was wrong and what is accepted, for the body of the reply.
    """

    status = 400
    phrase = "bad request"

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

    phrase = "empty payload"


class BadEnvelope(ItemError):
    """The JSON, form or base64 around the image cannot be read."""

    phrase = "bad envelope"


class BodyGone(ItemError):
    """The front door has removed the body because its client left."""

    phrase = "body gone"


class BodyUnreadable(ItemError):
    """The front door's file cannot be read; the client can do nothing about it."""

    status = 500
    phrase = "body unreadable"


class BadTarget(ItemError):
    """The target class of an explanation is not a class of the model."""

    phrase = "bad target"


class ExplanationsClosed(ItemError):
    """A request asks for an explanation, but the model's settings turn explanations off."""

    status = 403
    phrase = "explanations are closed"


class TooManyExplanations(ItemError):
    """Explanations have used their share of the worker's time."""

    status = 429
    phrase = "too many explanations"


class ExplanationTooLarge(ItemError):
    """An explanation is larger than `max_response_bytes`, and sending it would end the worker."""

    status = 422
    phrase = "explanation too large"


class PayloadTooLarge(ItemError):
    """The payload has more bytes than `max_payload_bytes`."""

    status = 413
    phrase = "payload too large"


class ImageTooLarge(ItemError):
    """The header states more pixels than `max_pixels`; nothing was decoded."""

    status = 413
    phrase = "image too large"


class UnsupportedFormat(ItemError):
    """The bytes are in none of the accepted image formats."""

    status = 415
    phrase = "unsupported image format"


class UndecodableImage(ItemError):
    """The format is accepted, but data is broken or missing."""

    status = 422
    phrase = "cannot decode image"


class ImageTooCostly(ItemError):
    """The image was made to cost far more CPU time than its size justifies."""

    status = 422
    phrase = "image too costly to decode"


class PostprocessFailed(ItemError):
    """The custom handler failed on this item; the worker's log has the cause."""

    status = 500
    phrase = "postprocessing failed"


class BatchOutOfTime(ItemError):
    """The batch has used most of `responseTimeout`, so this item is given up."""

    status = 503
    phrase = "batch out of time"


class DeadlineExceeded(ItemError):
    """The request cannot be answered in the time that it has; nothing was decoded."""

    status = 504
    phrase = "deadline exceeded"


class BadTensor(ItemError):
    """The shape or dtype of an npy payload is not that of the model's input."""

    status = 422
    phrase = "bad tensor"


class ModelOutOfMemory(ItemError):
    """The model ran out of memory on the item's batch; its worker goes on."""

    status = 503
    phrase = "model out of memory"


class ModelFailed(ItemError):
    """The model failed on the item's batch; the worker's log has the cause."""

    status = 503
    phrase = "model failed"
