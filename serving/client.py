"""A client: sends images, returns predictions. It needs neither torch nor TorchServe.

from offpath.client import Client

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("photo.jpg").labels)

A server is not trusted: its replies are bounded in size, time and nesting.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import orjson

from offpath.handler.config import THIN_SETTINGS, HandlerConfig
from offpath.handler.error_kinds import WORKER_DIED
from offpath.handler.errors import BadTensor, ItemError
from offpath.handler.image.decode import decode_image
from offpath.handler.image.transform import transform_image
from offpath.handler.wire_names import REQUEST_ID_HEADER
from offpath.serving.reply_deadline import DeadlineTransport
from offpath.serving.storage import read_regular_file

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
# A server sends at most 6.5 MB unless its owner raises max_response_bytes.
MAX_REPLY_BYTES = 16 << 20
# Requests of an AsyncClient at a time; others wait.
MAX_THREADS = 256
LISTED_MODELS = 20
# How many kinds of input are tried for one image; a canary's may differ from its model's.
MAX_INPUTS = 3

Image = str | Path | bytes


@dataclass(frozen=True)
class Prediction:
    """One reply of a server.

    Attributes:
        status: HTTP status; 0 if the image was not sent, because it cannot be read or decoded.
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

    def json(self) -> Any:
        """Parses the body, such as a custom handler's answer.

        Raises:
            ValueError: the body is not JSON, or is nested too deeply.
        """
        return parse_json(self.body)


class ServerUnreachable(Exception):
    """No usable reply arrived: nothing listens, or the reply took too long or is too large."""


class ModelNotNamed(Exception):
    """No model was named, and the server has several or does not list them.

    Attributes:
        names: names of the server's models; empty if the server does not list them.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the server has several models; name one of {', '.join(names[:LISTED_MODELS])}"
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


class _Exchange:
    """The requests and replies of both clients, which only differ in who waits for them."""

    def __init__(
        self,
        base_url: str | Sequence[str] = "http://127.0.0.1:8080",
        model: str | None = None,
        thin: bool = False,
        timeout_s: float = 60.0,
        headers: dict[str, str] | None = None,
        verify: bool | ssl.SSLContext = True,
        retries: int = 0,
    ) -> None:
        self.thin, self.retries, self.timeout_s = thin, retries, timeout_s
        urls = [base_url] if isinstance(base_url, str) else base_url
        self._urls = [httpx.URL(url.rstrip("/")) for url in urls]
        self._turn = 0
        # SageMaker's path, which TorchServe leads to the model that it was started with.
        self._path = make_path(model) if model else INVOCATIONS
        self._input = HandlerConfig()
        self._transport = DeadlineTransport(verify)
        self._http = httpx.Client(headers=headers, trust_env=False, transport=self._transport)
        # A compressed reply of a megabyte may become gigabytes.
        self._http.headers["accept-encoding"] = "identity"

    @property
    def url(self) -> httpx.URL:
        """Address of the host that is asked next."""
        return self._urls[self._turn % len(self._urls)]

    def _predict(self, image: Image) -> Prediction:
        prediction = self._classify(image)
        if not prediction.is_ok:
            raise ServerError(prediction)
        return prediction

    def _try_predict(self, image: Image) -> Prediction:
        try:
            return self._classify(image)
        except (OSError, ItemError) as error:
            return Prediction(0, error=str(error))

    def _classify(self, image: Image) -> Prediction:
        payload = image if isinstance(image, bytes) else read_regular_file(Path(image), sys.maxsize)
        if not self.thin:
            return self._ask_model(payload, IMAGE_CONTENT_TYPE)
        for _ in range(MAX_INPUTS):
            npy = make_npy(payload, self._input)
            prediction = self._ask_model(npy, NPY_CONTENT_TYPE)
            wanted = read_input(prediction)
            if wanted is None:
                break
            self._input = wanted
        return prediction

    def _ask_model(self, payload: bytes, content_type: str) -> Prediction:
        """Asks the model; without a name, asks for the names of the server's models first."""
        prediction = self._ask(self._path, payload, content_type)
        if self._path != INVOCATIONS or prediction.status not in (400, 404):
            return prediction
        if prediction.status == 404:
            # A front door lists its models; another kind of server may not.
            names = self._list_models() or [DEFAULT_MODEL]
        elif NO_MODEL_NAMED in (prediction.error or ""):
            names = []
        else:
            return prediction
        if len(names) != 1:
            raise ModelNotNamed(names)
        path = make_path(names[0])
        named = self._ask(path, payload, content_type)
        if named.is_ok:
            self._path = path
        elif prediction.status == named.status == 404:
            raise ModelNotNamed([])
        return named

    def _list_models(self) -> list[str]:
        """Returns the names of a front door's models; empty if the server lists none."""
        with contextlib.suppress(ServerUnreachable, ValueError, KeyError, TypeError):
            listed = self._send("GET", self.url, "/models", LOOK_UP_TIMEOUT_S).json()
            return [str(one["modelName"]) for one in listed["models"]]
        return []

    def _ask(self, path: str, payload: bytes, content_type: str) -> Prediction:
        """Asks until a final status arrives, or the tries are used up."""
        tries, sent = 1, {"content": payload, "headers": {"content-type": content_type}}
        while True:
            turn, host = self._turn, self.url
            try:
                prediction = self._send("POST", host, path, self.timeout_s, **sent)
                # An image that has ended a worker must not end another one.
                is_final = prediction.error_type == WORKER_DIED.type
                if is_final or prediction.status not in PASSING or tries > self.retries:
                    return replace(prediction, tries=tries)
            except ServerUnreachable:
                if tries > self.retries:
                    raise
            # Set, not incremented: another request may have met the same failure.
            self._turn = turn + 1
            rounds, is_within = divmod(tries, len(self._urls))
            if not is_within:
                time.sleep(make_pause_s(rounds))
            tries += 1

    def _send(
        self, method: str, host: httpx.URL, path: str, timeout_s: float, **sent: Any
    ) -> Prediction:
        """Sends a request; raises ServerUnreachable without a usable reply after `timeout_s`."""
        body, began_s = bytearray(), time.perf_counter()
        deadline = self._transport.within(timeout_s)
        sent["timeout"] = timeout_s
        try:
            with deadline, self._http.stream(method, f"{host}{path}", **sent) as reply:
                if reply.headers.get("content-encoding", "identity") != "identity":
                    raise httpx.ReadError("the reply is compressed, which was not asked for")
                for part in reply.iter_raw():
                    body += part
                    if len(body) > MAX_REPLY_BYTES:
                        raise httpx.ReadError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
        except httpx.TransportError as error:
            why = str(error) or f"it took longer than {timeout_s:g} s"
            raise ServerUnreachable(f"no answer from {host}: {why}") from error
        return parse_reply(reply, bytes(body), (time.perf_counter() - began_s) * 1e3)


class Client(_Exchange):
    """Sends images to one model over kept connections. Threads may share it.

    Args:
        base_url: TorchServe's inference address. With several addresses, the next one is asked
            when one fails, and stays in use.
        model: name of the model; None takes the server's only model.
        thin: decode and resize here as the model's archive says, and send uint8 pixels (150 kB for
            224 px) instead of the file. If the model takes other pixels than those of the default
            settings, its first reply says which, and the image is sent again.
        timeout_s: time-out of one reply, from connecting to its last byte.
        headers: headers of each request, such as an authorization.
        verify: check that a TLS certificate is trusted and fits the host. A context trusts what it
            has loaded, such as a private certificate authority.
        retries: number of further attempts when no reply, or a status of PASSING, arrives. Another
            host is asked at once, the same host after a pause. Repeating a prediction is safe: it
            changes nothing on the server.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def predict(self, image: Image) -> Prediction:
        """Classifies one image.

        Args:
            image: path of a file, or its bytes.

        Raises:
            ServerError: the server refused the image or failed.
            OSError: the file cannot be read.
            ServerUnreachable: no usable reply arrived.
            ModelNotNamed: the server has several models, or does not list them.
            offpath.handler.errors.ItemError: the image cannot be decoded (only with `thin`).
        """
        return self._predict(image)

    def try_predict(self, image: Image) -> Prediction:
        """Classifies one image like `predict`, but returns an error as a Prediction."""
        return self._try_predict(image)

    def predict_many(self, images: Iterable[Image], at_once: int = 8) -> Iterator[Prediction]:
        """Yields the predictions of `try_predict` in the order of the images.

        Args:
            at_once: images that are read, on their way, or answered and not yet yielded.
        """
        waiting: deque[Future[Prediction]] = deque()
        pool = ThreadPoolExecutor(at_once)
        try:
            for image in images:
                if len(waiting) == at_once:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self.try_predict, image))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class AsyncClient(_Exchange):
    """A `Client` for asyncio, whose requests are sent by threads beside the event loop.

    This takes less CPU time than httpx's own client for asyncio. The request of a call that is
    cancelled goes on until its reply or its time-out.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MAX_THREADS, "offpath-client")

    async def predict(self, image: Image) -> Prediction:
        """Classifies one image; raises like `Client.predict`."""
        return await asyncio.wrap_future(self._threads.submit(self._predict, image))

    async def try_predict(self, image: Image) -> Prediction:
        """Classifies one image like `predict`, but returns an error as a Prediction."""
        return await asyncio.wrap_future(self._threads.submit(self._try_predict, image))

    async def predict_many(
        self, images: Iterable[Image], at_once: int = 8
    ) -> AsyncIterator[Prediction]:
        """Yields predictions like `Client.predict_many`."""
        waiting: deque[Future[Prediction]] = deque()
        try:
            for image in images:
                if len(waiting) == at_once:
                    yield await asyncio.wrap_future(waiting.popleft())
                waiting.append(self._threads.submit(self._try_predict, image))
            while waiting:
                yield await asyncio.wrap_future(waiting.popleft())
        finally:
            for one in waiting:
                one.cancel()


def make_path(model: str) -> str:
    """Returns the path of MODEL or MODEL/VERSION, whatever characters a server's list has in it."""
    return f"/predictions/{quote(model, errors='replace')}"


def make_pause_s(rounds: int) -> float:
    """Returns a random pause that doubles with each round, so that clients spread out."""
    longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (rounds - 1))
    return longest_s * random.uniform(0.5, 1.0)


def make_npy(payload: bytes, settings: HandlerConfig = HandlerConfig()) -> bytes:
    """Preprocesses an image as the server would, to an npy file of uint8 [height, width, channels].

    The settings that were followed are written behind the array.
    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    image = decode_image(payload, settings.decode_options)
    file = io.BytesIO()
    np.save(file, transform_image(image, settings.input_geometry), allow_pickle=False)
    return file.getvalue() + orjson.dumps(settings.thin_settings)


def read_input(prediction: Prediction) -> HandlerConfig | None:
    """Reads from a refusal of pixels which the model takes; None from all other replies."""
    if prediction.error_type != BadTensor.__name__:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        given = prediction.json()["input"]
        settings = {name: given[name] for name in THIN_SETTINGS}
        # The server normalises; these values only complete the section.
        return HandlerConfig.from_mapping({**settings, "mean": 0.5, "std": 0.5}, {})
    return None


def parse_json(text: bytes) -> Any:
    """Parses JSON; raises ValueError for anything else, and for nesting that is too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


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
    return {name: duration_ms for name, duration_ms in timings.items() if _is_number(duration_ms)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _parse_labels(value: object) -> list[tuple[str, float]]:
    """Reads `{label: probability}`; the reply of another kind of model has no labels."""
    if not isinstance(value, dict) or not all(map(_is_number, value.values())):
        return []
    return [(label, float(p)) for label, p in value.items()]


def parse_reply(reply: httpx.Response, body: bytes, latency_ms: float) -> Prediction:
    labels: list[tuple[str, float]] = []
    error = error_type = value = None
    with contextlib.suppress(ValueError):
        value = parse_json(body)
    if reply.status_code == 200:
        labels = _parse_labels(value)
    elif isinstance(value, dict) and isinstance(value.get("message"), str):
        error = value["message"]
        error_type = value["type"] if isinstance(value.get("type"), str) else None
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
        body=body,
    )
