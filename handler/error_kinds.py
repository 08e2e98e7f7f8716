"""Every error that a client can get, whichever part of offpath finds it.

The handler (errors.py), the service around it (serving/service/messages.py), the front door's
configuration and its OpenAPI description take status, name and text from this table.
"""

from __future__ import annotations

from typing import NamedTuple


class ErrorKind(NamedTuple):
    """One kind of error.

    Attributes:
        type: its name for clients and metrics.
        text: what it is, for the API's description, or the message of a reply without the handler.
        is_passing: the same request may succeed a second later (`Retry-After: 1`).
    """

    status: int
    type: str
    text: str
    is_passing: bool = False


# Seconds of `Retry-After`.
RETRY_AFTER_S = 1
OF_ITEMS = (
    ErrorKind(400, "EmptyPayload", "empty payload"),
    ErrorKind(400, "BadEnvelope", "bad envelope"),
    ErrorKind(400, "BadTarget", "bad target"),
    ErrorKind(400, "BodyGone", "body gone"),
    ErrorKind(403, "ExplanationsClosed", "explanations are closed"),
    ErrorKind(413, "PayloadTooLarge", "payload too large"),
    ErrorKind(413, "ImageTooLarge", "image too large"),
    ErrorKind(415, "UnsupportedFormat", "unsupported image format"),
    ErrorKind(422, "UndecodableImage", "cannot decode image"),
    ErrorKind(422, "ImageTooCostly", "image too costly to decode"),
    ErrorKind(422, "BadTensor", "bad tensor"),
    ErrorKind(422, "ExplanationTooLarge", "explanation too large"),
    ErrorKind(429, "TooManyExplanations", "too many explanations", True),
    ErrorKind(500, "PostprocessFailed", "postprocessing failed"),
    ErrorKind(500, "BodyUnreadable", "body unreadable"),
    ErrorKind(503, "BatchOutOfTime", "batch out of time", True),
    ErrorKind(503, "ModelOutOfMemory", "model out of memory", True),
    ErrorKind(503, "ModelFailed", "model failed", True),
    ErrorKind(504, "DeadlineExceeded", "deadline exceeded"),
)
# How a compressed body begins, and the message that names the cause.
GZIP, GZIPPED = b"\x1f\x8b", "the body is compressed by gzip; send it as it is"
# Of a server whose handler does not see the request.
NO_PATH = ErrorKind(404, "NotFound", "no such path; POST /predictions/NAME")
NO_METHOD = ErrorKind(405, "MethodNotAllowed", "send the image by POST or PUT")
TOO_SLOW = ErrorKind(408, "RequestTimeout", "the body took too long to arrive")
TOO_LARGE = ErrorKind(413, "PayloadTooLarge", "at most {max_body_bytes} bytes are accepted")
BUSY = ErrorKind(503, "ServiceUnavailable", "too many requests are waiting; try again later", True)
# As operators may choose it (`busy_status`).
BUSY_429 = BUSY._replace(status=429)
MODEL_GONE = ErrorKind(
    503, "ModelGone", "the process of the model ended; send the request again", True
)
# Of a server whose workers die without their server.
WORKER_DIED = ErrorKind(500, "WorkerDied", "a worker died of this image or of one beside it")
ENDS_WORKERS = ErrorKind(422, "EndsWorkers", "workers died of this image; it is refused")
TOO_MANY = ErrorKind(
    429,
    "TooManyRequests",
    "too many requests or too large bodies from this client; send fewer at a time",
    True,
)
# Of the front door: what it says itself, by status.
OF_DOOR = (
    ErrorKind(400, "BadRequest", "the request cannot be read"),
    ErrorKind(401, "Unauthorized", "a bearer token is needed"),
    ErrorKind(403, "Forbidden", "explanations are closed on this server"),
    NO_PATH._replace(text="not found; the paths are /predictions/MODEL and /ping"),
    NO_METHOD._replace(text="send an image with POST or PUT; the other paths have GET"),
    TOO_LARGE._replace(text=f"the body is too large; {TOO_LARGE.text}"),
    TOO_MANY,
    ErrorKind(
        502, "BadGateway", "the server ended before it answered; send the request again", True
    ),
    BUSY,
    ErrorKind(504, "GatewayTimeout", "the server took too long to answer"),
)
