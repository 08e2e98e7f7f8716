"""Loads a handler as TorchServe's worker does, and gives it batches as the worker does.

No server runs. The handler gets a real context and real metrics, in a process of its own: the
archive's folder goes first on the import path, and what a handler does to its process (threads,
allocator, logging) affects no other handler. All handlers of a run get the same images in the same
order. Each body is a new bytearray, which is what the worker's protocol delivers.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from offpath.handler.errors import ExpectedError, WrongOption
from offpath.profiling.profilers.handlers import HandlerSpec
from offpath.profiling.profilers.samples import BatchSample

MODEL_NAME = "classifier"
Clock = Callable[[], float]
Seconds = dict[str, float]


@dataclass
class LoadedHandler:
    """A handler that is ready for requests.

    Attributes:
        entry: the function that the worker calls, `entry(rows, context)`.
        instance: the object that has `entry` as a method; None if `entry` is a function.
    """

    entry: Callable[[list[dict[str, Any]], Any], Any]
    context: Any
    instance: Any
    module: ModuleType


class Collector:
    """An observer of batches. This base class collects nothing and serves for the warm-up."""

    def watching(self) -> AbstractContextManager[None]:
        """Returns a context that is entered around each call of `handle`."""
        return nullcontext()

    def take_batch(self) -> tuple[Seconds, Seconds]:
        """Returns the last batch's seconds by stage, on the host and on the accelerator.

        Collectors of functions and lines return none: they would measure the stages' clocks too.
        """
        return {}, {}

    def finish(
        self, shorten: Callable[[str], str], path: Path | None
    ) -> dict[str, list[dict[str, Any]]]:
        """Returns the samples under the name of their kind, and writes `path` if it has a file.

        Args:
            shorten: makes a source file's path fit for a report.
        """
        return {}


def load_handler(spec: HandlerSpec) -> LoadedHandler:
    """Loads and initialises the handler. Errors of the handler itself pass through.

    Raises:
        WrongOption: the class is not in its file.
    """
    # As TorchServe starts a worker: working folder, import path, log on stdout.
    os.chdir(spec.folder)
    sys.path.insert(0, spec.folder)
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    import torch

    torch.set_num_threads(spec.threads)
    if spec.class_file:
        return _load_class(spec)
    from ts.model_loader import ModelLoaderFactory

    service = ModelLoaderFactory.get_model_loader().load(
        MODEL_NAME,
        spec.folder,
        spec.entry,
        spec.gpu_id,
        spec.batch_size,
        None,
        True,
        make_metrics(),
    )
    service.set_cl_socket(None)
    entry = service._entry_point
    instance = getattr(entry, "__self__", None)
    module = sys.modules[(type(instance) if instance else entry).__module__]
    return LoadedHandler(entry, service.context, instance, module)


def make_metrics() -> Any:
    """Returns TorchServe's metrics cache with the metrics that it declares by default."""
    import ts
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    declared = Path(ts.__file__).parent / "configs" / "metrics.yaml"
    metrics = MetricsCacheYamlImpl(str(declared))
    metrics.initialize_cache()
    return metrics


def _load_class(spec: HandlerSpec) -> LoadedHandler:
    """Loads a class from the user's own file. The file stays in place: reports name its lines."""
    from ts.service import Service

    module = _import_file(Path(spec.class_file))
    handler_class = getattr(module, spec.class_name, None)
    if not isinstance(handler_class, type):
        found = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise WrongOption(
            f"class {spec.class_name!r} is not in {Path(spec.class_file).name!r}; found:"
            f" {', '.join(found) or 'no class'}"
        )
    if not callable(getattr(handler_class, "handle", None)):
        raise WrongOption(
            f"class {spec.class_name!r} has no method handle(data, context), which every"
            " TorchServe handler needs"
        )
    manifest = json.loads(Path(spec.folder, "MAR-INF", "MANIFEST.json").read_text())
    instance = handler_class()
    service = Service(
        MODEL_NAME,
        spec.folder,
        manifest,
        instance.handle,
        spec.gpu_id,
        spec.batch_size,
        True,
        make_metrics(),
    )
    service.set_cl_socket(None)
    if hasattr(instance, "initialize"):
        instance.initialize(service.context)
    return LoadedHandler(instance.handle, service.context, instance, module)


def _import_file(path: Path) -> ModuleType:
    # The file may import its neighbours. They come after the archive's files.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise WrongOption(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Driver:
    """A sender of batches to one handler."""

    def __init__(
        self,
        handler: LoadedHandler,
        images: Sequence[bytes],
        batch_size: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._handler = handler
        self._batch_size = batch_size
        self._clock = clock
        self._requests = make_requests(images)
        self.refused = 0

    def run(self, batches: int, collector: Collector) -> Iterator[BatchSample]:
        """Handles batches one after the other. Errors of the handler pass through.

        Raises ExpectedError if the handler does not return one reply per request.
        """
        for _ in range(batches):
            yield self._handle(collector)

    def _handle(self, collector: Collector) -> BatchSample:
        rows = self._next_rows()
        context = self._handler.context
        # Only `handle` is inside the clock.
        with collector.watching():
            start = self._clock()
            replies = self._handler.entry(rows, context)
            total_s = self._clock() - start
        self._check(replies, len(rows))
        stages_s, device_s = collector.take_batch()
        return BatchSample(len(rows), total_s, stages_s, device_s)

    def _next_rows(self) -> list[dict[str, Any]]:
        """Prepares the context for the next batch, as ts/service.py does before each call."""
        from ts.service import Service

        batch = list(itertools.islice(self._requests, self._batch_size))
        headers, rows, ids = Service.retrieve_data_for_inference(batch)
        context = self._handler.context
        context.request_ids = ids
        context.request_processor = headers
        context.metrics.request_ids = ids
        context.cl_socket = None
        return list(rows)

    def _check(self, replies: object, count: int) -> None:
        if not isinstance(replies, list) or len(replies) != count:
            found = repr(replies)
            if isinstance(replies, list):
                found = f"{len(replies)} replies"
            raise ExpectedError(
                f"the handler answered {count} requests with {found[:200]}; expected a list of"
                f" {count}"
            )
        processors = self._handler.context.request_processor
        self.refused += sum(
            processor.get_response_status_code() not in (None, 200) for processor in processors
        )


def make_requests(images: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yields requests without end, in the form that ts/protocol/otf_message_handler.py decodes."""
    # All handlers get the same images in the same order.
    chance = random.Random(0)
    order = chance.sample(range(len(images)), len(images))
    for index in itertools.cycle(order):
        request_id = uuid.UUID(int=chance.getrandbits(128), version=4)
        body = bytearray(images[index])
        yield {
            "requestId": str(request_id).encode(),
            "headers": [{"name": b"content-type", "value": b"image/jpeg"}],
            "parameters": [{"name": "body", "contentType": "image/jpeg", "value": body}],
        }
