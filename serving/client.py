"""The client's side: sends pictures, returns predictions. Needs neither torch nor TorchServe.

from offpath.client import Client

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("photo.jpg").labels)
"""

from __future__ import annotations

import contextlib
import io
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from offpath.handler.decode import SCALE_MARGIN, DecodeOptions, decode_image
from offpath.handler.square import Square
from offpath.handler.transform import transform_image

INVOCATIONS = "/invocations"
NPY_CONTENT_TYPE = "application/x-npy"
IMAGE_CONTENT_TYPE = "application/octet-stream"


# The name of archives that were given none, and behind what does not know `/invocations`.
DEFAULT_MODEL = "classifier"
# TorchServe's answer to `/invocations` unless it was started with exactly one model.
NO_MODEL_NAMED = "model_name is required"
MANAGEMENT_PORT = 8081
LOOK_UP_TIMEOUT_S = 5.0


class ServerUnreachable(Exception):
    """No answer came: nothing listens there, or it took too long."""


class ModelNotNamed(Exception):
    """No model was named, and the server has not exactly one.

    Attributes:
        names: those that it has; empty where nobody says.
    """

    def __init__(self, names: list[str]) -> None:
        choices = ", ".join(names) or "its operator knows which"
        super().__init__(f"the server has several models, name one: {choices}")
        self.names = names


class ServerError(Exception):
    """The server answered with something else than a prediction.

    Attributes:
        code: HTTP status.
        type: the error's, for instance `UndecodableImage` (docs/reference.md); empty where the
            server, or something before it, gave none.
        message: what was wrong.
        prediction: the whole answer.
    """

    def __init__(self, prediction: Prediction) -> None:
        self.code, self.prediction = prediction.status, prediction
        self.type, self.message = prediction.error_type or "", prediction.error or ""
        super().__init__(f"{self.code} {self.type}: {self.message}".replace(" :", ":"))


@dataclass(frozen=True)
class Prediction:
    """One answer.

    Attributes:
        status: HTTP status.
        labels: (label, probability), best first; empty unless the status is 200 and the body is
            a classifier's.
        error: the server's message; None with status 200.
        error_type: the error's type, where the server gives one.
        latency_ms: from sending to the last byte of the answer, preprocessing not included.
        server_timing: milliseconds per stage of the batch; empty where the server sends none.
        request_id: TorchServe's id, the prediction log's `event_id`.
        body: the answer as it came.
    """

    status: int
    labels: list[tuple[str, float]] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None
    latency_ms: float = 0.0
    server_timing: dict[str, float] = field(default_factory=dict)
    request_id: str | None = None
    body: bytes = b""

    @property
    def is_ok(self) -> bool:
        return self.status == 200


class Client:
    """Sends pictures to one model over a kept connection.

    Args:
        base_url: TorchServe's inference address.
        model: its name; None: the server's only one.
        thin: decode and resize here and send uint8 pixels (150 kB for 224 px) instead of the file.
        square: the model's preprocessing, for `thin`.
        timeout_s: for one answer.
        headers: sent with each request, for instance an authorization.
        verify: whether a TLS certificate must be trusted and fit the host.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        model: str | None = None,
        thin: bool = False,
        square: Square = Square(),
        timeout_s: float = 60.0,
        headers: dict[str, str] | None = None,
        verify: bool = True,
    ) -> None:
        self.thin = thin
        self._square = square
        # SageMaker's path: TorchServe takes the model that it was started with.
        self._path = f"/predictions/{model}" if model else INVOCATIONS
        self._http = httpx.Client(
            base_url=base_url,
            timeout=timeout_s,
            headers=headers,
            trust_env=False,
            verify=verify,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def predict(self, image: str | Path | bytes) -> Prediction:
        """Classifies one picture.

        Args:
            image: a file's path or its bytes.

        Raises:
            ServerError: the server refused the picture or failed, with code, type and message.
            OSError: the file cannot be read.
            ServerUnreachable: no answer.
            ModelNotNamed: the server has several models.
            offpath.handler.errors.ItemError: with `thin`, a picture that cannot be decoded.
        """
        prediction = self.try_predict(image)
        if not prediction.is_ok:
            raise ServerError(prediction)
        return prediction

    def try_predict(self, image: str | Path | bytes) -> Prediction:
        """The same, with a refusal as a value: `Prediction.status`, `error_type`, `error`."""
        payload = image if isinstance(image, bytes) else Path(image).read_bytes()
        content_type = IMAGE_CONTENT_TYPE
        if self.thin:
            payload, content_type = make_npy(payload, self._square), NPY_CONTENT_TYPE
        prediction = self._send(self._path, payload, content_type)
        if self._path != INVOCATIONS or prediction.status not in (400, 404):
            return prediction
        if prediction.status == 404:  # the front door, or another server
            path = f"/predictions/{DEFAULT_MODEL}"
        elif NO_MODEL_NAMED in (prediction.error or ""):
            names = self._find_models()
            if len(names) != 1:
                raise ModelNotNamed(names)
            path = f"/predictions/{names[0]}"  # registered after the start
        else:
            return prediction
        prediction = self._send(path, payload, content_type)
        if prediction.is_ok:
            self._path = path
        return prediction

    def _send(self, path: str, payload: bytes, content_type: str) -> Prediction:
        start = time.perf_counter()
        try:
            response = self._http.post(
                path, content=payload, headers={"content-type": content_type}
            )
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"no answer from {self._http.base_url}: {error}"
            ) from error
        return _parse(response, (time.perf_counter() - start) * 1e3)

    def _find_models(self) -> list[str]:
        """The models' names, where the management API can be reached on its usual ports."""
        base = self._http.base_url
        for port in dict.fromkeys([(base.port or 80) + 1, MANAGEMENT_PORT]):
            url = base.copy_with(port=port, path="/models")
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                answer = httpx.get(url, timeout=LOOK_UP_TIMEOUT_S, trust_env=False)
                return [str(one["modelName"]) for one in answer.json()["models"]]
        return []


def make_npy(payload: bytes, square: Square = Square()) -> bytes:
    """Preprocesses as the server would, to a uint8 [size, size, channels] npy file.

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    image = decode_image(payload, DecodeOptions.for_square(square, SCALE_MARGIN))
    file = io.BytesIO()
    np.save(file, transform_image(image, square), allow_pickle=False)
    return file.getvalue()


def parse_server_timing(header: str) -> dict[str, float]:
    """`decode;dur=11.2, total;dur=15` -> milliseconds by name.

    Syntax: https://www.w3.org/TR/server-timing/#the-server-timing-header-field
    """
    timings: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = [part.strip() for part in metric.split(";")]
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                with contextlib.suppress(
                    ValueError
                ):  # not ours: proxies add metrics too
                    timings[name] = float(value)
    return timings


def _parse_labels(value: object) -> list[tuple[str, float]]:
    """`{label: probability}`; another model's answer has no labels, see `Prediction.body`."""
    if not isinstance(value, dict):
        return []
    if not all(isinstance(p, (int, float)) for p in value.values()):
        return []
    return [(label, float(p)) for label, p in value.items()]


def _parse(response: httpx.Response, latency_ms: float) -> Prediction:
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
    )
