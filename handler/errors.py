"""Errors that belong to one item of a batch: an HTTP status, a type and a fixed public phrase.

A client sees what is here and nothing else; details of bugs go to the worker's log.
"""

from __future__ import annotations


class ExpectedError(Exception):
    """Something the user can put right: the message says what was wrong and what to do.

    The command line prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 1


class WrongOption(ExpectedError):
    """What the user passed is wrong in itself, an option or a file that one names: as click's own
    usage errors are."""

    exit_code = 2


class MissingPackage(ExpectedError):
    """A package of one of the distribution's extras is not installed."""

    exit_code = 2

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed: pip install 'torchserve-offpath[{extra}]'"
        )


class ConfigError(ValueError):
    """A wrong `handler:` section: the worker refuses to load and the log says which key."""


class ItemError(Exception):
    """One item cannot be answered; its neighbours in the batch can.

    Attributes:
        status: HTTP status of the reply.
        phrase: reason phrase; ASCII, because TorchServe's protocol counts characters but sends
            bytes (ts/protocol/otf_message_handler.py), so anything else hangs the worker.
        message: what was wrong and what is accepted; for the reply's body.
    """

    status = 400
    phrase = "bad request"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def type(self) -> str:
        """Name of the error as clients and metrics see it."""
        return type(self).__name__


class EmptyPayload(ItemError):
    """The request carries no image."""

    phrase = "empty payload"


class BadEnvelope(ItemError):
    """The JSON or base64 around the image cannot be read."""

    phrase = "bad envelope"


class BodyGone(ItemError):
    """The front door has taken the body away: its client left."""

    phrase = "body gone"


class BodyUnreadable(ItemError):
    """The front door's file cannot be read; the client can do nothing about it."""

    status = 500
    phrase = "body unreadable"


class BadTarget(ItemError):
    """The target class of an explanation is not a class of the model."""

    phrase = "bad target"


class ExplanationsClosed(ItemError):
    """An explanation is asked of a model whose archive has none."""

    status = 403
    phrase = "explanations are closed"


class TooManyExplanations(ItemError):
    """Explanations have had their share of the worker's time."""

    status = 429
    phrase = "too many explanations"


class ExplanationTooLarge(ItemError):
    """An explanation over `max_response_bytes`, which would end the worker."""

    status = 422
    phrase = "explanation too large"


class PayloadTooLarge(ItemError):
    """More bytes than `max_payload_bytes`."""

    status = 413
    phrase = "payload too large"


class ImageTooLarge(ItemError):
    """More pixels than `max_pixels`, by the header, before anything is decoded."""

    status = 413
    phrase = "image too large"


class UnsupportedFormat(ItemError):
    """Bytes that are none of the accepted image formats."""

    status = 415
    phrase = "unsupported image format"


class UndecodableImage(ItemError):
    """An accepted format with broken or missing data."""

    status = 422
    phrase = "cannot decode image"


class ImageTooCostly(ItemError):
    """A picture made to cost far more CPU time than its size: scans, chunks, runs without end."""

    status = 422
    phrase = "image too costly to decode"


class PostprocessFailed(ItemError):
    """The archive's own `postprocess_item` failed on this item; the worker's log says how."""

    status = 500
    phrase = "postprocessing failed"


class BatchOutOfTime(ItemError):
    """The batch has taken most of `responseTimeout`: an item is given up, not the worker."""

    status = 503
    phrase = "batch out of time"


class BadTensor(ItemError):
    """An npy payload of another shape or dtype than the model's input."""

    status = 422
    phrase = "bad tensor"
