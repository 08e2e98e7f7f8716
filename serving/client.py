"""The client's side: sends pictures, returns predictions. Needs neither torch nor TorchServe.

from offpath.client import Client

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("photo.jpg").labels)
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np

from offpath.handler.image.decode import SCALE_MARGIN, DecodeOptions, decode_image
from offpath.handler.image.geometry import Square
from offpath.handler.image.transform import transform_image
from offpath.serving.prediction import Prediction, parse_reply

INVOCATIONS = "/invocations"
NPY_CONTENT_TYPE = "application/x-npy"
IMAGE_CONTENT_TYPE = "application/octet-stream"


# The name of archives that were given none, and behind what does not know `/invocations`.
DEFAULT_MODEL = "classifier"
# TorchServe's answer to `/invocations` unless it was started with exactly one model.
NO_MODEL_NAMED = "model_name is required"
MANAGEMENT_PORT = 8081
LOOK_UP_TIMEOUT_S = 5.0
# Somebody else, or the same one later, may answer. A worker that died is a 500 under TorchServe,
# and Ray Serve's proxy says 500 where others say 502 to 504.
PASSING = (429, 500, 502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class ServerUnreachable(Exception):
    """No answer came: nothing listens there, or it took too long."""


class ModelNotNamed(Exception):
    """No model was named, and the server has not exactly one, or does not say which.

    Attributes:
        names: those that it has; empty where nobody says.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the server has several models, name one: {', '.join(names)}"
            if names
            else "the server does not say which models it has (a front door never does), and "
            f"none is called {DEFAULT_MODEL!r}: name one"
        )
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


class Client:
    """Sends pictures to one model over a kept connection.

    Args:
        base_url: TorchServe's inference address; of several hosts, the next is asked where one
            fails, and stays the one that is asked.
        model: its name; None: the server's only one.
        thin: decode and resize here and send uint8 pixels (150 kB for 224 px) instead of the file.
        square: the model's preprocessing, for `thin`.
        timeout_s: for one answer.
        headers: sent with each request, for instance an authorization.
        verify: whether a TLS certificate must be trusted and fit the host.
        retries: how often a prediction that got no answer, or one of PASSING, is asked for again:
            it changes nothing on the server. At once of another host, after a pause of the same.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] = "http://127.0.0.1:8080",
        model: str | None = None,
        thin: bool = False,
        square: Square = Square(),
        timeout_s: float = 60.0,
        headers: dict[str, str] | None = None,
        verify: bool = True,
        retries: int = 0,
    ) -> None:
        self.thin, self.retries = thin, retries
        self._square = square
        urls = [base_url] if isinstance(base_url, str) else base_url
        self._urls = [httpx.URL(url.rstrip("/")) for url in urls]
        self._turn = 0
        # SageMaker's path: TorchServe takes the model that it was started with.
        self._path = f"/predictions/{model}" if model else INVOCATIONS
        self._http = httpx.Client(
            timeout=timeout_s, headers=headers, trust_env=False, verify=verify
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
            ModelNotNamed: the server has several models, or does not say which it has.
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
        named = self._send(path, payload, content_type)
        if named.is_ok:
            self._path = path
        elif prediction.status == named.status == 404:
            raise ModelNotNamed([])
        return named

    def _send(self, path: str, payload: bytes, content_type: str) -> Prediction:
        """Asks until somebody answers for good, or for the last time."""
        tries = 1
        while True:
            turn = self._turn
            try:
                prediction = self._ask(self.url, path, payload, content_type, tries)
                if prediction.status not in PASSING or tries > self.retries:
                    return prediction
            except ServerUnreachable:
                if tries > self.retries:
                    raise
            # Not counted up: another thread may have met the same failure.
            self._turn = turn + 1
            if tries % len(self._urls) == 0:
                time.sleep(make_pause_s(tries // len(self._urls)))
            tries += 1

    @property
    def url(self) -> httpx.URL:
        """The host that is asked next."""
        return self._urls[self._turn % len(self._urls)]

    def _ask(
        self, url: httpx.URL, path: str, payload: bytes, content_type: str, tries: int
    ) -> Prediction:
        start = time.perf_counter()
        try:
            response = self._http.post(
                f"{url}{path}", content=payload, headers={"content-type": content_type}
            )
        except httpx.TransportError as error:
            raise ServerUnreachable(f"no answer from {url}: {error}") from error
        return parse_reply(response, (time.perf_counter() - start) * 1e3, tries)

    def _find_models(self) -> list[str]:
        """The models' names, where the management API can be reached on its usual ports."""
        base = self.url
        for port in dict.fromkeys([(base.port or 80) + 1, MANAGEMENT_PORT]):
            url = base.copy_with(port=port, path="/models")
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                answer = httpx.get(url, timeout=LOOK_UP_TIMEOUT_S, trust_env=False)
                return [str(one["modelName"]) for one in answer.json()["models"]]
        return []


def make_pause_s(rounds: int) -> float:
    """Twice as long each time, and no two clients alike: they do not come back all at once."""
    longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (rounds - 1))
    return longest_s * random.uniform(0.5, 1.0)


def make_npy(payload: bytes, square: Square = Square()) -> bytes:
    """Preprocesses as the server would, to a uint8 [size, size, channels] npy file.

    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    image = decode_image(payload, DecodeOptions.for_square(square, SCALE_MARGIN))
    file = io.BytesIO()
    np.save(file, transform_image(image, square), allow_pickle=False)
    return file.getvalue()
