"""The answer of a server, read from its HTTP reply."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import httpx


@dataclass(frozen=True)
class Prediction:
    """One answer of a server.

    Attributes:
        status: HTTP status.
        labels: (label, probability), best first; empty unless the status is 200 and the body is
            a classifier's.
        error: the server's message; None with status 200.
        error_type: type of the error, if the server gives one.
        latency_ms: time from sending to the last byte of the answer, without preprocessing.
        server_timing: milliseconds per stage of the batch; empty where the server sends none.
        request_id: TorchServe's id, the prediction log's `event_id`.
        body: the unchanged body of the answer.
        tries: number of times that the request was sent. Each try has its own request id, and its
            own record if the server answered it.
    """

    status: int
    labels: list[tuple[str, float]] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None
    latency_ms: float = 0.0
    server_timing: dict[str, float] = field(default_factory=dict)
    request_id: str | None = None
    body: bytes = b""
    tries: int = 1

    @property
    def is_ok(self) -> bool:
        return self.status == 200


def parse_server_timing(header: str) -> dict[str, float]:
    """Parses `decode;dur=11.2, total;dur=15` into milliseconds by name.

    Syntax: https://www.w3.org/TR/server-timing/#the-server-timing-header-field
    """
    timings: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = [part.strip() for part in metric.split(";")]
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                with contextlib.suppress(ValueError):  # a metric that a proxy has added
                    timings[name] = float(value)
    return timings


def _parse_labels(value: object) -> list[tuple[str, float]]:
    """Reads `{label: probability}`; the answer of another kind of model has no labels."""
    if not isinstance(value, dict):
        return []
    if not all(isinstance(p, (int, float)) for p in value.values()):
        return []
    return [(label, float(p)) for label, p in value.items()]


def parse_reply(response: httpx.Response, latency_ms: float, tries: int) -> Prediction:
    labels: list[tuple[str, float]] = []
    error = error_type = None
    try:
        value = response.json()
    except ValueError:
        value = None
    if response.status_code == 200:
        labels = _parse_labels(value)
    elif isinstance(value, dict) and "message" in value:
        error = str(value["message"])
        error_type = str(value["type"]) if "type" in value else None
    else:
        error = response.reason_phrase or f"status {response.status_code}"
    return Prediction(
        status=response.status_code,
        labels=labels,
        error=error,
        error_type=error_type,
        latency_ms=latency_ms,
        server_timing=parse_server_timing(response.headers.get("server-timing", "")),
        request_id=response.headers.get("x-request-id"),
        body=response.content,
        tries=tries,
    )
