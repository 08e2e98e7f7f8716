"""A client: sends images, returns predictions. It needs neither torch nor TorchServe.

from offpath.client import Client

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("photo.jpg").labels)
"""

from __future__ import annotations

import contextlib
import io
import random
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from offpath.handler.error_kinds import WORKER_DIED
from offpath.handler.image.decode import SCALE_MARGIN, DecodeOptions, decode_image
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from offpath.handler.wire_names import REQUEST_ID_HEADER

INVOCATIONS = "/invocations"
NPY_CONTENT_TYPE = "application/x-npy"
IMAGE_CONTENT_TYPE = "application/octet-stream"
# Name of an archive that was given none; tried on servers that do not know `/invocations`.
DEFAULT_MODEL = "classifier"
# TorchServe's reply to `/invocations` unless it was started with exactly one model.
NO_MODEL_NAMED = "model_name is required"
LOOK_UP_TIMEOUT_S = 5.0
# Statuses after which another host, or the same host later, may answer. TorchServe says 500 when a
# worker dies, and Ray Serve's proxy says 500 where others say 502 to 504.
PASSING = (429, 500, 502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


@dataclass(frozen=True)
class Prediction:
    """One reply of a server.

    Attributes:
        status: HTTP status.
        labels: (label, probability), best first; empty unless the status is 200 and the body is
            a classifier's.
        error: the server's message; None with status 200.
        error_type: type of the error, if the server gives one.
        latency_ms: time from sending to the last byte of the reply, without preprocessing.
        server_timing: milliseconds per stage of the batch; empty where the server sends none.
        request_id: TorchServe's id, the prediction log's `event_id`.
        body: the unchanged body of the reply.
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


class ServerUnreachable(Exception):
    """No reply arrived: nothing listens at the address, or the reply took too long."""


class ModelNotNamed(Exception):
    """No model was named, and the server has several or does not list them.

    Attributes:
        names: names of the server's models; empty if the server does not list them.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the server has several models; name one of {', '.join(names)}"
            if names
            else "the server does not list its models; name the model"
        )
        self.names = names


class ServerError(Exception):
    """The server answered with an error instead of a prediction.

    Attributes:
        code: HTTP status.
        type: type of the error, such as `UndecodableImage` (docs/reference.md); empty if the
            server, or a proxy in front of it, gave none.
        message: text of the error.
        prediction: the whole reply.
    """

    def __init__(self, prediction: Prediction) -> None:
        self.code, self.prediction = prediction.status, prediction
        self.type, self.message = prediction.error_type or "", prediction.error or ""
        super().__init__(f"{self.code} {self.type}: {self.message}".replace(" :", ":"))


class Client:
    """Sends images to one model over a kept connection.

    Args:
        base_url: TorchServe's inference address. With several addresses, the next one is asked
            when one fails, and stays in use.
        model: name of the model; None takes the server's only model.
        thin: decode and resize here, and send uint8 pixels (150 kB for 224 px) instead of the file.
        geometry: the model's preprocessing, for `thin`.
        timeout_s: time-out of one reply.
        headers: headers of each request, such as an authorization.
        verify: check that a TLS certificate is trusted and fits the host. A context trusts what it
            has loaded, such as a private certificate authority.
        retries: number of further attempts when no reply, or a status of PASSING, arrives. Another
            host is asked at once, the same host after a pause. Repeating a prediction is safe: it
            changes nothing on the server.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] = "http://127.0.0.1:8080",
        model: str | None = None,
        thin: bool = False,
        geometry: InputGeometry = InputGeometry(),
        timeout_s: float = 60.0,
        headers: dict[str, str] | None = None,
        verify: bool | ssl.SSLContext = True,
        retries: int = 0,
    ) -> None:
        self.thin, self.retries = thin, retries
        self._geometry = geometry
        urls = [base_url] if isinstance(base_url, str) else base_url
        self._urls = [httpx.URL(url.rstrip("/")) for url in urls]
        self._turn = 0
        # SageMaker's path, which TorchServe leads to the model that it was started with.
        self._path = f"/predictions/{model}" if model else INVOCATIONS
        self._http = httpx.Client(
            timeout=timeout_s, headers=headers, trust_env=False, verify=verify
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def predict(self, image: str | Path | bytes) -> Prediction:
        """Classifies one image.

        Args:
            image: path of a file, or its bytes.

        Raises:
            ServerError: the server refused the image or failed.
            OSError: the file cannot be read.
            ServerUnreachable: no reply arrived.
            ModelNotNamed: the server has several models, or does not list them.
            offpath.handler.errors.ItemError: the image cannot be decoded (only with `thin`).
        """
        prediction = self.try_predict(image)
        if not prediction.is_ok:
            raise ServerError(prediction)
        return prediction

    def try_predict(self, image: str | Path | bytes) -> Prediction:
        """Classifies one image like `predict`, but returns an error as a Prediction."""
        payload = image if isinstance(image, bytes) else Path(image).read_bytes()
        content_type = IMAGE_CONTENT_TYPE
        if self.thin:
            payload, content_type = make_npy(payload, self._geometry), NPY_CONTENT_TYPE
        prediction = self._send(self._path, payload, content_type)
        if self._path != INVOCATIONS or prediction.status not in (400, 404):
            return prediction
        if prediction.status == 404:
            # A front door lists its models; another kind of server may not.
            names = list_models(self._http, self.url) or [DEFAULT_MODEL]
        elif NO_MODEL_NAMED in (prediction.error or ""):
            names = []
        else:
            return prediction
        if len(names) != 1:
            raise ModelNotNamed(names)
        path = f"/predictions/{names[0]}"
        named = self._send(path, payload, content_type)
        if named.is_ok:
            self._path = path
        elif prediction.status == named.status == 404:
            raise ModelNotNamed([])
        return named

    def _send(self, path: str, payload: bytes, content_type: str) -> Prediction:
        """Sends a request until it is answered with a final status, or the tries are used up."""
        tries = 1
        while True:
            turn = self._turn
            try:
                prediction = self._ask(self.url, path, payload, content_type, tries)
                # An image that has ended a worker must not end another one.
                is_final = prediction.error_type == WORKER_DIED.type
                if is_final or prediction.status not in PASSING or tries > self.retries:
                    return prediction
            except ServerUnreachable:
                if tries > self.retries:
                    raise
            # Set, not incremented: another thread may have met the same failure.
            self._turn = turn + 1
            if tries % len(self._urls) == 0:
                time.sleep(make_pause_s(tries // len(self._urls)))
            tries += 1

    @property
    def url(self) -> httpx.URL:
        """Address of the host that is asked next."""
        return self._urls[self._turn % len(self._urls)]

    def _ask(
        self, url: httpx.URL, path: str, payload: bytes, content_type: str, tries: int
    ) -> Prediction:
        start = time.perf_counter()
        try:
            reply = self._http.post(
                f"{url}{path}", content=payload, headers={"content-type": content_type}
            )
        except httpx.TransportError as error:
            raise ServerUnreachable(f"no answer from {url}: {error}") from error
        return parse_reply(reply, (time.perf_counter() - start) * 1e3, tries)


def list_models(http: httpx.Client, url: httpx.URL) -> list[str]:
    """Returns the names of a front door's models; empty if the server lists none."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
        reply = http.get(url.copy_with(path="/models"), timeout=LOOK_UP_TIMEOUT_S)
        return [str(one["modelName"]) for one in reply.json()["models"]]
    return []


def make_pause_s(rounds: int) -> float:
    """Returns a random pause that doubles with each round, so that clients spread out."""
    longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (rounds - 1))
    return longest_s * random.uniform(0.5, 1.0)


def make_npy(payload: bytes, geometry: InputGeometry = InputGeometry()) -> bytes:
    """Preprocesses an image as the server would, to an npy file of uint8 [height, width, channels].

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    image = decode_image(payload, DecodeOptions.for_input(geometry, SCALE_MARGIN))
    file = io.BytesIO()
    np.save(file, transform_image(image, geometry), allow_pickle=False)
    return file.getvalue()


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
    """Reads `{label: probability}`; the reply of another kind of model has no labels."""
    if not isinstance(value, dict):
        return []
    if not all(isinstance(p, (int, float)) for p in value.values()):
        return []
    return [(label, float(p)) for label, p in value.items()]


def parse_reply(reply: httpx.Response, latency_ms: float, tries: int) -> Prediction:
    labels: list[tuple[str, float]] = []
    error = error_type = None
    try:
        value = reply.json()
    except ValueError:
        value = None
    if reply.status_code == 200:
        labels = _parse_labels(value)
    elif isinstance(value, dict) and "message" in value:
        error = str(value["message"])
        error_type = str(value["type"]) if "type" in value else None
    else:
        error = reply.reason_phrase or f"status {reply.status_code}"
    return Prediction(
        status=reply.status_code,
        labels=labels,
        error=error,
        error_type=error_type,
        latency_ms=latency_ms,
        server_timing=parse_server_timing(reply.headers.get("server-timing", "")),
        request_id=reply.headers.get(REQUEST_ID_HEADER),
        body=reply.content,
        tries=tries,
    )
