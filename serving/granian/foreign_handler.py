"""Runs an archive as TorchServe's worker would, whoever wrote its handler.

Loading, the context and the rules for statuses and bodies are TorchServe's own Python code
(ts/model_loader.py, ts/service.py). What Java does around a worker is here: parameters from a
request (`parseRequest` in InferenceRequestHandler.java, `getFormData` in NettyUtils.java), and a
reply from the worker's message (BatchAggregator.java, RestJob.java).
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.metrics.metric_type_enum import MetricTypes
from ts.model_loader import TsModelLoader
from ts.utils.util import PredictionException

from offpath.archive.torchserve_metrics import find_default_metrics
from offpath.handler.contract import Reply, Request
from offpath.handler.error_kinds import MODEL_GONE, ErrorKind
from offpath.handler.errors import ItemError
from offpath.handler.process.lazy_imports import unused_imports_deferred
from offpath.handler.request.body_from_front_door import DoorBodies
from offpath.handler.request.forms import FORM, MULTIPART, Body, read_form, split_multipart
from offpath.handler.wire_names import EXPLAIN_HEADER, PREFIX
from offpath.serving.fork.children import forget_offpath
from offpath.serving.granian.metric_sums import MetricSums
from offpath.serving.granian.plan import ForeignSettings
from offpath.serving.service.messages import Refused, make_event_id

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
JSON = "application/json"
# Of a part with a file name and without a type (Netty's HttpPostBodyUtil.java).
FILE_TYPE = "application/octet-stream"
# Their labels may be anything.
MAX_SERIES = 500
MAX_LABELS, MAX_LABEL_CHARS = 50, 200
# Prometheus refuses a whole page for the sake of one other name.
METRIC_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,99}")
# Decoded JSON may take 27 times the memory of its text, so a batch has more of it only in one body.
MAX_JSON_BYTES = 16 << 20
# A worker can send no others.
STATUSES = range(200, 600)
# Headers by which a reply says where it ends; the server sets them.
FRAMING = ("connection", "content-length", "keep-alive", "transfer-encoding", "upgrade")
# Java's name for every failure of a handler (BatchAggregator.java, NettyUtils.java).
FAILURE = "InternalServerException"
NO_STREAM = "this server sends no reply in parts"
END_OF_MESSAGE = -1
# Name, content type as sent (empty for none), value.
Parameter = tuple[str, str, bytes]
# A request as TorchServe's worker receives it.
Entry = dict[str, Any]


class ForeignHandler:
    """The entry point of an unpacked archive; it is loaded, and always called, in one thread.

    Args:
        handler: as its manifest names it: `image_classifier`, `handler.py` or `handler.py:name`.
        gpu: index of the CUDA device; None for the CPU.

    Raises:
        Exception: whatever the archive's code raises while it loads.
    """

    # A handler cannot tell how its model is, but it may end its process.
    health: str | None = None
    read_s, deadline_ms, in_flight = 0.0, 0, 1

    def __init__(
        self,
        folder: Path,
        handler: str,
        settings: ForeignSettings,
        sums: MetricSums,
        batch_size: int,
        gpu: int | None,
        name: str,
    ) -> None:
        self._decodes = settings.decode_input
        self._device = "cpu" if gpu is None else f"cuda:{gpu}"
        self._door = DoorBodies.from_environment()
        import_their_base()
        enter_archive(folder, handler)
        metrics = settings.metrics_config or str(find_default_metrics())
        cache = PublishedMetrics(metrics, sums, name)
        self._thread = ThreadPoolExecutor(1, "foreign-handler")
        load = TsModelLoader().load
        envelope = settings.envelope or None
        self._service = self._thread.submit(
            load, name, str(folder), handler, gpu, batch_size, envelope, True, cache
        ).result()
        self._service.set_cl_socket(NoStream())

    def classify(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch, one reply per request, in order."""
        entries = [self._make_entry(request) for request in requests]
        replies = {idx: one for idx, one in enumerate(entries) if isinstance(one, Reply)}
        for group in split_batch(entries):
            replies |= self._predict(group)
        return [replies[idx] for idx in range(len(requests))]

    def _predict(self, group: Mapping[int, Entry]) -> dict[int, Reply]:
        batch = [self._decode_entry(entry) for entry in group.values()]
        kind = MODEL_GONE
        try:
            if self.health is None:
                message = self._thread.submit(self._service.predict, batch).result()
                return dict(zip(group, read_message(message), strict=True))
        except SystemExit as end:
            # It ends its worker under TorchServe too.
            self.health = f"its handler has called sys.exit({end.code!r:.80})"
        except Exception:
            # For instance a header that is no text, or a phrase whose length Python misjudges.
            logger.exception("the handler's reply cannot be sent")
            kind = ErrorKind(503, FAILURE, "Prediction failed")
        return {idx: Refused(kind).reply for idx in group}

    def _make_entry(self, request: Request) -> Entry | Reply:
        """Makes what TorchServe's worker receives; the reply if the body cannot be read."""
        try:
            return self._read(request)
        except ItemError as error:
            return Refused(ErrorKind(error.status, error.type, error.message)).reply

    def _read(self, request: Request) -> Entry:
        if self._door is not None:
            request = self._door.open(request)
        headers = {k: v for k, v in request.headers.items() if not k.startswith(PREFIX)}
        parameters = make_parameters(request.body, headers.get("content-type", ""))
        return {
            "requestId": (request.id or make_event_id("")).encode(),
            "headers": [{"name": k.encode(), "value": v.encode()} for k, v in headers.items()],
            "parameters": [
                {"name": name, "contentType": kind, "value": value}
                for name, kind, value in parameters
            ],
        }

    def _decode_entry(self, entry: Entry) -> Entry:
        parameters = [
            {**one, "value": self._decode(one["contentType"], one["value"])}
            for one in entry["parameters"]
        ]
        return {**entry, "parameters": parameters}

    def _decode(self, kind: str, value: bytes) -> Any:
        """Decodes JSON and text (`_retrieve_input_data` in ts/protocol/otf_message_handler.py)."""
        if self._decodes:
            with contextlib.suppress(ValueError, RecursionError):
                if kind == JSON:
                    return load_json(value)
                if kind.startswith("text"):
                    return value.decode()
        return bytearray(value)

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def close(self) -> None:
        """TorchServe ends a worker without a word to its handler."""
        self._thread.shutdown(wait=True)


def import_their_base() -> None:
    """Imports the class that most handlers extend, without what few of them use.

    With openvino installed, that saves each worker 2.5 s of CPU and 200 MB, otherwise 0.4 s and
    27 MB. What the archive itself imports is not deferred. torch_tensorrt is imported: a scripted
    model that holds its engines cannot load without it.
    """
    with unused_imports_deferred("torch_tensorrt"), contextlib.suppress(ImportError):
        import ts.torch_handler.image_classifier  # noqa: F401


def enter_archive(folder: Path, handler: str) -> None:
    """Gives this process the working folder and the import path that TorchServe's worker has.

    `getEnvString` in EnvironmentUtils.java: the archive first, then the handler's own folder.
    """
    os.chdir(folder)
    own = (folder / handler.partition(":")[0]).parent
    sys.path[:] = [
        *dict.fromkeys((str(folder), str(own))),
        # Otherwise `import handler` would find the package of that name in a checkout.
        *(entry for entry in sys.path if entry and Path(entry).resolve() != ROOT),
    ]
    if (folder / "offpath.py").exists() or (folder / "offpath").is_dir():
        forget_offpath()


def make_parameters(body: Body, content_type: str) -> list[Parameter]:
    """Makes the parameters of a request: its form's, or its body.

    Raises:
        ItemError: the form cannot be parsed.
    """
    parameters: list[Parameter] = []
    kind = content_type.partition(";")[0].strip()
    if kind.lower() == MULTIPART:
        for part in split_multipart(body, content_type):
            own = FILE_TYPE if part.content_type is None else part.content_type
            kind = own.partition(";")[0].strip() if part.is_file else ""
            parameters.append((part.name, kind, bytes(part.value)))
    elif kind.lower() == FORM:
        parameters += [(name, "", value) for name, value in read_form(body)]
    else:
        parameters.append(("body", kind, bytes(body)))
    return parameters


def load_json(text: bytes) -> Any:
    """Decodes JSON without the garbage collector, which takes 70 % of the time of a large one."""
    gc.disable()
    try:
        return json.loads(text.decode())
    finally:
        gc.enable()


def split_batch(entries: Sequence[Entry | Reply]) -> Iterator[dict[int, Entry]]:
    """Yields the requests, by their index, that a handler gets together.

    TorchServe's own handlers ask the first request whether the whole batch is to be explained.
    """
    groups: dict[object, tuple[int, dict[int, Entry]]] = {}
    for idx, entry in enumerate(entries):
        if isinstance(entry, Reply):
            continue
        sizes = [len(one["value"]) for one in entry["parameters"] if one["contentType"] == JSON]
        explains = {"name": EXPLAIN_HEADER.encode(), "value": b"True"} in entry["headers"]
        size, group = groups.get(explains, (0, {}))
        size += sum(sizes)
        if group and size > MAX_JSON_BYTES:
            yield group
            size, group = sum(sizes), {}
        group[idx] = entry
        groups[explains] = size, group
    for _, group in groups.values():
        yield group


def read_message(message: bytes | bytearray) -> Iterator[Reply]:
    """Reads the replies in a message of `create_predict_response` in otf_message_handler.py.

    Raises:
        ValueError: the message is broken.
    """
    view, at = memoryview(message), 0

    def take(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(view) - at:
            raise ValueError(f"a part of {size} bytes in a message of {len(view)}, at {at}")
        at += size
        return bytes(view[at - size : at])

    def number() -> int:
        return int.from_bytes(take(4), "big", signed=True)

    def text() -> str:
        return take(number()).decode()

    code, reason = number(), text()
    while (id_size := number()) != END_OF_MESSAGE:
        take(id_size)
        kind, status, _ = text(), number(), text()
        headers = {"content-type": kind} if kind else {}
        for _ in range(number()):
            key, value = text().lower(), text()
            if key not in FRAMING:
                headers[key] = value
        body = take(number())
        if code == 200 and status in STATUSES:
            yield Reply(status, headers, body)
        elif code == 200:
            why = f"the handler set the status {status}; expected {STATUSES[0]} to {STATUSES[-1]}"
            yield Refused(ErrorKind(500, FAILURE, why)).reply
        else:
            yield Refused(ErrorKind(code, FAILURE, reason)).reply


class NoStream:
    """Stands in for the connection to Java, on which a handler would send parts of a reply."""

    def sendall(self, *_: object) -> NoReturn:
        raise PredictionException(NO_STREAM, 501)


class PublishedMetrics(MetricsCacheYamlImpl):
    """TorchServe's metrics cache, whose metrics go to our /metrics instead of a log.

    Args:
        path: a metrics.yaml, which declares the metrics that a handler can get by name.
    """

    def __init__(self, path: str, sums: MetricSums, model_name: str) -> None:
        super().__init__(path)
        self.model_name = model_name
        self._sums = sums
        self._series: set[tuple[str, ...]] = set()
        self.initialize_cache()

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        names = list(dimension_names)
        metric: CachingMetric = super().add_metric_to_cache(metric_name, unit, names, metric_type)
        metric.add_or_update = partial(self._publish, metric)
        return metric

    def _publish(
        self,
        metric: CachingMetric,
        value: float,
        dimension_values: Sequence[Any] = (),
        request_id: str = "",
    ) -> None:
        name, names = metric.metric_name, metric.dimension_names
        is_counter = metric.metric_type == MetricTypes.COUNTER
        is_named = all(map(METRIC_NAME.fullmatch, (name.replace(":", "_"), *names)))
        is_labelled = len(dimension_values or ()) == len(names) <= MAX_LABELS
        try:
            value = float(value)
        except (TypeError, ValueError):
            value = math.nan
        if not (is_named and is_labelled and math.isfinite(value)) or (is_counter and value < 0):
            logger.error("wrong name, value or dimensions for metric %.100r", name)
            return
        labels = {key: clean_label(label) for key, label in zip(names, dimension_values)}
        labels.pop("Hostname", None)  # which every metric gets
        if metric.metric_type == MetricTypes.HISTOGRAM:
            self._add(f"{name}_sum", value, True, labels)
            self._add(f"{name}_count", 1, True, labels)
        else:
            self._add(name, value, is_counter, labels)

    def _add(self, name: str, value: float, is_counter: bool, labels: dict[str, str]) -> None:
        series = (name, *labels.values())
        if series in self._series or len(self._series) < MAX_SERIES:
            self._series.add(series)
            self._sums.add(name, value, is_counter, **labels)


def clean_label(label: object) -> str:
    """Returns a label's first characters, without those that could break a line of /metrics."""
    text = str(label)[:MAX_LABEL_CHARS]
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
