"""Calls the handler of an unpacked .mar outside TorchServe, with plain requests.

The handler comes from the archive, with its settings, parity gate, errors, metrics and prediction
log. Another server only adds how requests arrive and how replies leave. The package `torchserve`
is needed for the Python classes that a handler derives from; Java never starts.

`ModelService` and `offpath batch` use it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import yaml
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_errors import MetricsCacheKeyError

from offpath.handler.error_kinds import ErrorKind
from offpath.handler.serving_settings import ServingSettings
from offpath.handler.wire_names import (
    BODY_HEADER,
    RECEIVED_HEADER,
    WARM_UP_HEADER,
    WARM_UP_VARIABLE,
)
from offpath.serving.service.messages import Refused, Reply, Request

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
ENTRY = "offpath_archive_entry"
WARM_UP_BATCHES = 3


class ServerMetric(Protocol):
    """One metric of the surrounding server, for all its label values."""

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""


# Makes a metric of the surrounding server: name, names of the labels, whether it is a counter.
MakeMetric = Callable[[str, Sequence[str], bool], ServerMetric]


class ArchivedHandler:
    """The handler of an unpacked archive.

    `Handler` of model_service.py describes the members that the service uses.

    Args:
        batch_size: the largest batch that will come; None for the archive's own setting.
        gpu: index of the CUDA device; None for the CPU.
        threads: threads of this process; None for the archive's own setting.
        make_metric: publishes the handler's metrics; None drops them.
        name: name under which the model is served; None for the archive's own.

    Raises:
        OSError: the folder holds no archive.
    """

    is_foreign = False

    def __init__(
        self,
        folder: Path,
        batch_size: int | None = None,
        gpu: int | None = None,
        threads: int | None = None,
        make_metric: MakeMetric | None = None,
        name: str | None = None,
    ) -> None:
        self._context = make_context(folder, batch_size, gpu, make_metric, name)
        if threads is not None:
            config = self._context.model_yaml_config
            config["handler"] = {**(config.get("handler") or {}), "threads": threads}
        # A server of ours has set it for all its workers.
        self._warm_up_key = os.environ.setdefault(WARM_UP_VARIABLE, secrets.token_hex(16))
        entry = load_entry(folder / self._context.manifest["model"]["handler"])
        self._handler = entry.Classifier()
        self._handler.initialize(self._context)
        # `health.diagnosis` is the reason to replace this process; None while its model works.
        self.health = self._handler.health
        # Counts the time of answered requests, where the server receives them.
        self.count_requests: Callable[..., None] = self._handler.count_requests

    def handle(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch, one reply per request, in order; a bad image gets its own 4xx."""
        context = self._context
        context.request_ids = {idx: request.request_id for idx, request in enumerate(requests)}
        context.request_processor = [RequestProcessor(add_arrival(request)) for request in requests]
        rows = [make_row(request) for request in requests]
        bodies = self._handler.handle(rows, context)
        return [
            Reply(context.get_response_status(idx)[0], context.get_response_headers(idx), body)
            for idx, body in enumerate(bodies)
        ]

    def warm_up(self) -> None:
        """Answers full batches of an image, which the prediction log leaves out."""
        # The archive's own copy, which can be imported once its entry was loaded.
        from offpath.handler.process.warmup import warm_up_payloads

        height, width, _ = self._handler.config.input_geometry.shape
        image, _ = warm_up_payloads(height, width)
        headers = {WARM_UP_HEADER: self._warm_up_key}
        batch = [Request(image, "warm-up", headers)] * self._context.system_properties["batch_size"]
        for _ in range(WARM_UP_BATCHES):
            self.handle(batch)

    def close(self) -> None:
        """Writes the last metrics; the prediction log uploads what it can in a few seconds."""
        self._handler.close()

    def describe(self) -> dict[str, Any]:
        """Returns device, engine, precision and more: `describe_handle` of the classifier."""
        described: dict[str, Any] = self._handler.describe_handle()
        return described


def make_context(
    folder: Path,
    batch_size: int | None = None,
    gpu: int | None = None,
    make_metric: MakeMetric | None = None,
    name: str | None = None,
) -> Context:
    """Makes the context that TorchServe would pass to the handler of this archive."""
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    model = manifest["model"]
    config = yaml.safe_load((folder / model["configFile"]).read_text()) or {}
    return Context(
        name or model["modelName"],
        str(folder),
        manifest,
        batch_size or ServingSettings.from_mapping(config).batch_size,
        gpu,
        None,
        metrics=MetricsCache(make_metric),
        model_yaml_config=config,
    )


def add_arrival(request: Request) -> dict[str, str]:
    """Returns the headers, with the time of arrival that the handler's deadlines count from."""
    headers = dict(request.headers)
    if request.arrived_s:
        began_s = time.time() - (time.monotonic() - request.arrived_s)
        headers[RECEIVED_HEADER] = f"{began_s:.3f}"
    return headers


def make_row(request: Request) -> Any:
    """Makes a row for the handler. It parses forms itself, which Java does under TorchServe."""
    body = request.body
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith(FORMS):
        return {"body": body}
    # The archive's own copy, which can be imported once its entry was loaded.
    from offpath.handler.request.body_from_front_door import UnparsedRequest

    return UnparsedRequest(None, {"body": body}, None, content_type)


def open_body(headers: Mapping[str, str]) -> Any:
    """Maps the file that the front door names in these headers.

    Raises:
        Refused: the file is gone or cannot be read, or the door has not sent this request.
    """
    # The archive's own copies, which can be imported once its entry was loaded.
    from offpath.handler.errors import BodyUnreadable, ItemError

    try:
        door = find_door()
        if door is None or not door.has_sent(headers):
            raise BodyUnreadable("the front door has not sent this request")
        return door.map_body(headers[BODY_HEADER])
    except ItemError as error:
        raise Refused(ErrorKind(error.status, error.type, error.message)) from None


@lru_cache(maxsize=1)
def find_door() -> Any:
    """Returns the bodies of this server's front door; None without one."""
    from offpath.handler.request.body_from_front_door import DoorBodies

    return DoorBodies.from_environment()


def load_entry(path: Path) -> Any:
    """Loads the archive's entry module, which makes `offpath.handler` the archive's own copy."""
    loaded = sys.modules.get(ENTRY)
    if loaded is not None and loaded.__file__ == str(path):
        # Once per process: a second load would replace modules that are in use.
        return loaded
    # Behind the installed packages: the entry makes even an installed offpath use the archive's
    # handler.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(ENTRY, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[ENTRY] = module
    spec.loader.exec_module(module)
    return module


class MetricsCache:
    """Replaces TorchServe's metrics cache, which the handler expects."""

    def __init__(self, make_metric: MakeMetric | None) -> None:
        self._make_metric = make_metric
        self._metrics: dict[str, HandlerMetric] = {}

    def get_metric(self, name: str, kind: Any = None) -> HandlerMetric:
        """Returns a metric that was added before.

        A call without a kind asks whether the server accepts the name; here every name is accepted.

        Raises:
            MetricsCacheKeyError: there is a kind, and no metric of that name.
        """
        if name not in self._metrics and kind is not None:
            raise MetricsCacheKeyError(name)
        return self._metrics.get(name, HandlerMetric((), None))

    def add_metric_to_cache(
        self, name: str, unit: str, labels: Sequence[str], kind: Any
    ) -> HandlerMetric:
        published = None
        if self._make_metric is not None:
            published = self._make_metric(name, labels, kind.value == "counter")
        self._metrics[name] = metric = HandlerMetric(labels, published)
        return metric


@dataclass(frozen=True)
class HandlerMetric:
    """The names of a metric's labels, and the server's metric; None drops the values."""

    labels: Sequence[str]
    published: ServerMetric | None

    def add_or_update(self, value: float, label_values: Sequence[str]) -> None:
        if self.published is not None:
            self.published.add(dict(zip(self.labels, label_values)), value)
