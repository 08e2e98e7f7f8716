"""TorchServe's HTTP interface: the paths of one model, and refusals before the model is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass

# Room for the text of a form around the image.
ENVELOPE_BYTES = 65_536
JSON_TYPE = "application/json"
HEALTHY = b'{"status": "Healthy"}\n'
METHODS = frozenset(("POST", "PUT"))
PING = "/ping"


@dataclass(frozen=True)
class Refusal:
    """A response that the model has no part in, in the form of the handler's own errors."""

    status: int
    type: str
    message: str

    @property
    def body(self) -> bytes:
        fields = {"code": self.status, "type": self.type, "message": self.message}
        return json.dumps(fields).encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        again = [("Retry-After", "1")] if self.status == 503 else []
        return [("content-type", JSON_TYPE), *again]


class Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


NO_PATH = Refusal(404, "NotFound", "no such path; POST /predictions/NAME")
NO_METHOD = Refusal(405, "MethodNotAllowed", "send the image by POST or PUT")
BUSY = Refusal(503, "ServiceUnavailable", "too many requests are waiting; try again later")
TOO_SLOW = Refusal(408, "RequestTimeout", "the body took too long to arrive")
MODEL_GONE = Refusal(503, "ModelGone", "the process of the model ended; send the request again")


class ModelPaths:
    """The paths that lead to one version of a model; `version` is None if paths name none."""

    def __init__(self, name: str, version: str | None, max_body_bytes: int) -> None:
        ends = [name] if version is None else [name, f"{name}/{version}"]
        # True where an explanation is asked for.
        self._explains = {
            f"/{word}/{end}": word == "explanations"
            for word in ("predictions", "explanations")
            for end in ends
        }
        # As TorchServe answers it for its only model. A front door opens it only when told to.
        self._explains["/invocations"] = False
        self.max_body_bytes = max_body_bytes
        self.too_large = Refusal(
            413, "PayloadTooLarge", f"at most {max_body_bytes} bytes are accepted"
        )

    def refuse(self, method: str, path: str, length: str | None) -> Refusal | None:
        """Returns the response to a request that is none of these paths; None for the others.

        `path` has no escapes. `length` is the content-length header.
        """
        if path not in self._explains:
            return NO_PATH
        if method not in METHODS:
            return NO_METHOD
        if length is not None and int(length) > self.max_body_bytes:
            return self.too_large
        return None

    def is_explanation(self, path: str) -> bool:
        """Tells whether a path that `refuse` accepts asks for an explanation."""
        return self._explains[path]
