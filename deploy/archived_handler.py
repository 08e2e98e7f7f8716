"""An unpacked .mar outside TorchServe: its own handler, called with plain requests.

The handler is the one in the archive, with its settings, parity gate, errors, metrics and
prediction log: what another server adds is only how requests come in and answers go out. Of the
package `torchserve` it needs the Python classes that a handler derives from; Java never starts.

This file is copied into each export and imports nothing of ours but what is in the archive.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_errors import MetricsCacheKeyError

MANIFEST = Path("MAR-INF") / "MANIFEST.json"
ENTRY = "offpath_archive_entry"


@dataclass(frozen=True)
class Picture:
    """A picture that another process has decoded (archived_decoder.py), in plain values.

    Attributes:
        pixels: uint8 [size, size, channels].
        payload_bytes, payload_hash: of its file.
        stage_s: seconds by the name of the stage.
        target: the class that an explanation is asked for.
    """

    pixels: Any
    payload_bytes: int
    payload_hash: str | None
    stage_s: Mapping[str, float]
    target: str | None = None


@dataclass(frozen=True)
class Request:
    """One picture to classify.

    Attributes:
        body: the file's bytes, or a thin client's npy; or what was decoded elsewhere.
        request_id: the prediction log's `event_id`; unique.
        headers: as the client sent them.
    """

    body: bytes | Picture
    request_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What TorchServe would have sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Series(Protocol):
    """One metric of the server at hand, all its label values."""

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""


class MakeSeries(Protocol):
    """Makes a metric of the server at hand."""

    def __call__(self, name: str, labels: Sequence[str], is_counter: bool) -> Series:
        """A metric under one of the names that TorchServe shows."""


class ArchivedHandler:
    """The handler of an unpacked archive.

    Args:
        folder: where the archive's content lies.
        batch_size: the largest batch that will come; None for the archive's own setting.
        gpu: index of the CUDA device; None for the CPU.
        threads: of this process; None for the archive's own setting.
        make_series: where the handler's metrics go; None for nowhere.

    Raises:
        OSError: the folder holds no archive.
    """

    def __init__(
        self,
        folder: Path,
        batch_size: int | None = None,
        gpu: int | None = None,
        threads: int | None = None,
        make_series: MakeSeries | None = None,
    ) -> None:
        self._context = make_context(folder, batch_size, gpu, make_series)
        if threads is not None:
            config = self._context.model_yaml_config
            config["handler"] = {**(config.get("handler") or {}), "threads": threads}
        entry = load_entry(folder / self._context.manifest["model"]["handler"])
        self._handler = entry.Classifier()
        self._handler.initialize(self._context)

    def handle(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers a batch, one answer a request in order; a bad picture has a 4xx of its own."""
        context = self._context
        context.request_ids = {
            idx: request.request_id for idx, request in enumerate(requests)
        }
        context.request_processor = [
            RequestProcessor(dict(request.headers)) for request in requests
        ]
        rows = [make_row(request) for request in requests]
        bodies = self._handler.handle(rows, context)
        return [
            Answer(
                context.get_response_status(idx)[0],
                context.get_response_headers(idx),
                body,
            )
            for idx, body in enumerate(bodies)
        ]

    def close(self) -> None:
        """Writes the last metrics; the prediction log ships what it can in a few seconds."""
        self._handler.close()

    def describe(self) -> dict[str, Any]:
        """Device, engine, precision and the like; see docs/reference.md."""
        described: dict[str, Any] = self._handler.describe_handle()
        return described


def make_context(
    folder: Path,
    batch_size: int | None = None,
    gpu: int | None = None,
    make_series: MakeSeries | None = None,
) -> Context:
    """What TorchServe would tell the handler of an unpacked archive."""
    manifest = json.loads((folder / MANIFEST).read_text())
    model = manifest["model"]
    config = yaml.safe_load((folder / model["configFile"]).read_text()) or {}
    return Context(
        model["modelName"],
        str(folder),
        manifest,
        batch_size or config.get("batchSize", 1),
        gpu,
        None,
        metrics=MetricsCache(make_series),
        model_yaml_config=config,
    )


def make_row(request: Request) -> dict[str, Any]:
    """The row that TorchServe would have made of a request."""
    # The archive's own copy, which is there once its entry was loaded.
    from offpath.handler.image.decoded import Decoded
    from offpath.handler.request.body_from_front_door import FORM, MULTIPART, HandedOver
    from offpath.handler.stages import Stage

    body = request.body
    if isinstance(body, Picture):
        stage_s = {Stage(name): value for name, value in body.stage_s.items()}
        decoded = Decoded(body.pixels, body.payload_bytes, body.payload_hash, stage_s)
        return {"body": decoded, "target": body.target}
    content_type = request.headers.get("content-type", "")
    row: dict[str, Any] = {"body": body}
    if not content_type.lower().startswith((FORM, MULTIPART)):
        return row
    return {"body": HandedOver(None, row, None, content_type)}


def load_entry(path: Path) -> Any:
    """The archive's entry module; it makes `offpath.handler` the archive's own copy."""
    loaded = sys.modules.get(ENTRY)
    if loaded is not None and loaded.__file__ == str(path):
        # Once a process: it would take the place of what is in use.
        return loaded
    # Behind what is installed: an installed offpath gets the archive's handler by the entry.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(ENTRY, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[ENTRY] = module
    spec.loader.exec_module(module)
    return module


class MetricsCache:
    """Stands where the handler expects TorchServe's metrics cache."""

    def __init__(self, make_series: MakeSeries | None) -> None:
        self._make_series = make_series
        self._metrics: dict[str, Metric] = {}

    def get_metric(self, name: str, kind: Any = None) -> Metric:
        """A metric that was added before; MetricsCacheKeyError for another.

        Without a kind somebody asks whether the server takes that name: this one takes all.
        """
        if name not in self._metrics and kind is not None:
            raise MetricsCacheKeyError(name)
        return self._metrics.get(name, Metric((), None))

    def add_metric_to_cache(
        self, name: str, unit: str, labels: Sequence[str], kind: Any
    ) -> Metric:
        """A new metric."""
        series = None
        if self._make_series is not None:
            series = self._make_series(name, labels, kind.value == "counter")
        self._metrics[name] = metric = Metric(labels, series)
        return metric


@dataclass(frozen=True)
class Metric:
    """One metric with the names of its labels."""

    labels: Sequence[str]
    series: Series | None

    def add_or_update(self, value: float, label_values: Sequence[str]) -> None:
        """Adds to a counter, or sets a gauge."""
        if self.series is not None:
            self.series.add(dict(zip(self.labels, label_values)), value)
