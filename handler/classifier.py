"""The classifier of an archive, on any server: reads requests, and answers batches of them.

`classify` is the request path; read it first, then pipeline.py. The calls that servers make are in
contract.py.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offpath.handler.config import INPUT_SETTINGS, HandlerConfig
from offpath.handler.contract import LEFT, ArchiveContext, Item, Reply, Request
from offpath.handler.custom_handler import CustomReplies, Result
from offpath.handler.deadline import Deadlines
from offpath.handler.errors import DeadlineExceeded, ItemError, ModelOutOfMemory, without_frames
from offpath.handler.metrics import DECODED_BY_CPU, Metrics
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.device_errors import is_sticky, name_error
from offpath.handler.model.engines.choose import choose_engine
from offpath.handler.model.engines.engine import FOLDER
from offpath.handler.model.explanations import Explainer, integrate_gradients
from offpath.handler.model.load import load_labels, load_model
from offpath.handler.model.parity import load_parity_set
from offpath.handler.pipeline import READ_STAGES, Batch, Pipeline, batch_of, set_threads
from offpath.handler.prediction_log.batch_records import make_records
from offpath.handler.prediction_log.prediction_log import PredictionLog, open_prediction_log
from offpath.handler.process.host_limits import count_cores, decode_budget_s
from offpath.handler.process.sick_worker import ModelHealth
from offpath.handler.process.warmup import is_warm_up, warm_up_payloads
from offpath.handler.process.worker_setup import keep_freed_memory, use_device
from offpath.handler.reply import encode_error, encode_prediction
from offpath.handler.request.body_from_front_door import DoorBodies
from offpath.handler.serving_settings import ServingSettings
from offpath.handler.stages import BatchTimings, Stage, StageTimer, format_server_timing
from offpath.handler.wire_names import EXPLAIN_HEADER, WARM_UP_VARIABLE

if TYPE_CHECKING:
    from offpath.handler.tracing import Tracer

logger = logging.getLogger(__name__)
WARM_UP_BATCHES = 3


class OffpathClassifier:
    """A classifier (contract.py) with nothing but inference on the request's path.

    Attributes:
        metrics: counts batches; a server counts its requests there.
        timings: of the last batch, with all stages.
    """

    def initialize(self, context: ArchiveContext) -> None:
        """Reads the settings, loads the model and its labels, and warms up; once per process."""
        is_custom = type(self).postprocess_item is not OffpathClassifier.postprocess_item
        self._custom_replies = CustomReplies(self) if is_custom else None
        self.manifest, self.model_yaml_config = context.manifest, context.model_yaml_config
        self.config = config = HandlerConfig.from_mapping(self.model_yaml_config.get("handler"))
        self.topk = config.top_k
        folder = Path(context.system_properties["model_dir"])
        self.device = torch.device("cpu")
        gpu = context.system_properties.get("gpu_id")
        if gpu is not None and torch.cuda.is_available():
            self.device = torch.device("cuda", int(gpu))
            use_device(int(gpu))
        serving = ServingSettings.from_mapping(self.model_yaml_config)
        threads = config.threads or max(1, count_cores() // serving.workers)
        set_threads(threads)
        keep_freed_memory()
        self._model_name = context.model_name
        self._version = str(self.manifest["model"].get("modelVersion", ""))
        # Opened before the model is loaded, because the log's shipper imports an S3 client, which
        # takes half a second of CPU.
        self._log: PredictionLog | None = None
        if not config.prediction_log.is_off:
            self._log = open_prediction_log(
                config.prediction_log, model=self._model_name, version=self._version
            )
        self.model = load_model(folder, self.manifest, self.device, config.output)
        self.mapping = load_labels(folder)
        self._choice = choose_engine(self.model, config, self.device, folder / FOLDER, threads)
        door = DoorBodies.from_environment()
        self.pipeline = Pipeline(
            config,
            self._make_runner(folder, int(context.system_properties.get("batch_size") or 1)),
            self.mapping,
            threads,
            batch_s=decode_budget_s(serving.response_timeout_s),
            open_request=None if door is None else door.open,
        )
        self.pipeline.runner.warm_up()
        self._deadlines = Deadlines(config.deadline_ms)
        self._warm_up_key = os.environ.get(WARM_UP_VARIABLE)
        for payload in warm_up_payloads(*config.input_geometry.shape[:2]):
            self.pipeline.predict(self.pipeline.read_batch([Request(payload)]))
        read_log = None if self._log is None else self._log.counters
        self.metrics = Metrics(
            context.publish, self._model_name, config.metrics_interval_s, read_log
        )
        self.metrics.start(len(self._choice.lost))
        self._tracer = self._make_tracer()
        self._health = ModelHealth()
        # Held while a batch is answered: the buffer, the engine and its graphs are there once.
        self._answering = threading.Lock()
        self.timings = StageTimer().read()

    def read(self, request: Request) -> Item:
        late = self._deadlines.refuse_late([request])
        return Item(request, late[0]) if late else self.pipeline.read(request)

    @property
    def deadline_ms(self) -> int:
        return self.config.deadline_ms

    @property
    def in_flight(self) -> int:
        """2 where a batch is read while the one before is answered, else 1.

        A GPU leaves the cores idle meanwhile, a model on the CPU does not. A subclass's
        `preprocess` is called by one thread at a time.
        """
        is_own = type(self).preprocess is OffpathClassifier.preprocess
        wanted = self.config.read_ahead
        return 2 if is_own and (self.device.type == "cuda" if wanted is None else wanted) else 1

    def answer(self, items: Sequence[Item]) -> list[Reply]:
        with self._answering:
            return self._answer(batch_of(items))

    def classify(self, requests: Sequence[Request]) -> list[Reply]:
        try:
            batch = self.preprocess(requests)
        except Exception as error:
            batch = batch_of([Item(request) for request in requests])
            with self._answering:
                self._fail(batch, error, is_model=False)
        items = batch.items
        batch.items = [item for item in items if item.status != LEFT]
        with self._answering:
            answered = iter(self._answer(batch) if batch.items else ())
        return [
            encode_error(item.error) if item.error and item.status == LEFT else next(answered)
            for item in items
        ]

    def leave_costly(self) -> None:
        self.pipeline.leave_costly()

    @property
    def read_s(self) -> float:
        return sum(self.timings.seconds[stage] for stage in READ_STAGES)

    def preprocess(self, requests: Sequence[Request]) -> Batch:
        """Decodes a batch's images; a bad request becomes an item with an error."""
        return self.pipeline.read_batch(requests, self._deadlines.refuse_late(requests))

    def inference(self, batch: Batch) -> Batch:
        """Adds predictions to the items."""
        return self.pipeline.predict(batch)

    def postprocess(self, batch: Batch) -> list[Reply]:
        """Encodes the items' predictions and errors."""
        with batch.timer.stage(Stage.POSTPROCESS):
            if self._custom_replies is not None:
                return [self._custom_replies.encode(item) for item in batch.items]
            return encode_items(batch)

    def postprocess_item(self, result: Result) -> object:
        """Returns the body of one reply; a subclass may override it (docs/your-handler.md).

        Returns:
            any value that JSON can hold.

        Raises:
            ItemError: an override may raise it to give this item an error status.
        """
        return dict(result.predictions)

    def _answer(self, batch: Batch) -> list[Reply]:
        """Answers items that were read; a failure of the model gives every good item a 503."""
        try:
            # Before explanations, whose failures say nothing about predictions.
            if self.inference(batch).good():
                self._health.note_success()
            replies = self._explain(batch, self.postprocess(batch))
        except Exception as error:
            self._fail(batch, error)
            replies = encode_items(batch)
        # For the client and the log's records, so both see 0 for the stages that come later: a
        # reply cannot hold the time of its own log entry. The metrics below have all stages.
        timings = batch.timer.read()
        if self.config.server_timing:
            with batch.timer.stage(Stage.POSTPROCESS):
                text = format_server_timing(timings)
                for reply in replies:
                    reply.headers["Server-Timing"] = text
        real = [
            one for one in batch.items if not is_warm_up(one.request.headers, self._warm_up_key)
        ]
        if self._log is not None:
            with batch.timer.stage(Stage.LOG):
                log, name, version = self.config.prediction_log, self._model_name, self._version
                records = make_records(real, log, name, version, timings, len(batch.items))
                self._log.append(records)
        self.timings = batch.timer.read()
        self._count(batch, self.timings)
        if self._tracer is not None:
            self._tracer.trace(real, self.timings, len(batch.items))
        return replies

    @property
    def health(self) -> str | None:
        return self._health.diagnosis

    def describe(self) -> dict[str, Any]:
        """Returns the process's state and settings, for `GET /models/{name}?customized=true`."""
        return {
            "handler": "offpath",
            "device": str(self.device),
            **self._choice.describe(),
            "cuda_graphs": self.pipeline.runner.captured_sizes,
            "classes": self.pipeline.runner.classes,
            "threads": torch.get_num_threads(),
            "max_batch": self.pipeline.runner.max_batch,
            "activation": self.config.activation,
            "threshold": self.config.threshold,
            "decode": self.pipeline.decode_mode,
            **{key: getattr(self.config, key) for key in INPUT_SETTINGS},
            "prediction_log": self.config.prediction_log.uri,
            "spool": str(self.config.prediction_log.spool_dir),
            "log_problem": self._log.problem if self._log else "",
        }

    def warm_up(self) -> None:
        image, _ = warm_up_payloads(*self.config.input_geometry.shape[:2])
        batch = [Request(image)] * self.pipeline.runner.max_batch
        for _ in range(WARM_UP_BATCHES):
            self.pipeline.predict(self.pipeline.read_batch(batch))

    def close(self) -> None:
        """Ends the threads; the prediction log ships what it can within a few seconds.

        TorchServe never calls this. It kills its workers, and the next worker adopts the segments
        that are left.
        """
        self.metrics.stop()
        if self._log is not None:
            self._log.close()
        if self._tracer is not None:
            self._tracer.close()

    def _explain(self, batch: Batch, replies: list[Reply]) -> list[Reply]:
        """Returns the replies with explanations in place of predictions, where they were asked for.

        Predictions and explanations wait in one queue.
        """
        for idx, item in enumerate(batch.items):
            if item.error is not None or item.request.headers.get(EXPLAIN_HEADER) != "True":
                continue
            try:
                replies[idx] = self._explainer.explain(item)
                continue
            except ItemError as error:
                item.error = without_frames(error)
            except Exception as error:
                if is_sticky(error):
                    raise
                # The batch's other items have their replies already.
                item.error = self._health.fail_batch(error, is_model=False)
                logger.warning("an explanation failed: %s", name_error(error))
            replies[idx] = encode_error(item.error)
        return replies

    def _fail(self, batch: Batch, error: Exception, is_model: bool = True) -> None:
        """Gives the good items of a failed batch their error, and logs what failed.

        Args:
            is_model: False if the batch failed before the model ran.
        """
        health, was_sick = self._health, self.health is not None
        failure = health.fail_batch(error, is_model)
        for item in batch.good():
            item.error = failure
        is_memory = isinstance(failure, ModelOutOfMemory)
        self.metrics.count("offpath_out_of_memory_total", is_memory)
        if health.diagnosis is None and is_memory:
            logger.warning("a batch did not fit into memory: %s", name_error(error))
        elif health.diagnosis is None:
            logger.warning("the model failed on a batch", exc_info=error)
        elif not was_sick:
            text = "the model is broken, so this worker must be replaced: %s"
            logger.error(text, health.diagnosis)
            self.metrics.count("offpath_sick_workers_total")

    def _count(self, batch: Batch, timings: BatchTimings) -> None:
        errors = [item.error for item in batch.items if item.error is not None]
        self.metrics.count_batch(timings, len(batch.items), [error.type for error in errors])
        if batch.without_memory:
            self.metrics.count(DECODED_BY_CPU, batch.without_memory)
        late = [error for error in errors if isinstance(error, DeadlineExceeded)]
        if len(late) < len(batch.items):
            self._deadlines.learn(timings.total_s)
        if self.health is not None:
            self.metrics.write()  # this process ends before the thread would

    def _make_runner(self, folder: Path, batch_size: int) -> BatchRunner:
        parity = None
        if self.device.type == "cuda":
            parity = load_parity_set(folder / FOLDER, self.config)
        keeps_outputs = self._custom_replies is not None
        return BatchRunner(
            self._choice.engine, self.config, self.device, batch_size, parity, keeps_outputs
        )

    def _make_tracer(self) -> Tracer | None:
        if self.config.trace_endpoint == "off":
            return None
        # Imported only if needed: the SDK costs a worker 20 MB and half a second.
        from offpath.handler.tracing import Tracer

        return Tracer(
            self.config.trace_endpoint, self.config.trace_share, self._model_name, self._version
        )

    @cached_property
    def _explainer(self) -> Explainer:
        config, runner = self.config, self.pipeline.runner
        attribute = integrate_gradients(self.model, config, runner)
        return Explainer(attribute, config.explanations, config.max_response_bytes, runner.classes)


def encode_items(batch: Batch) -> list[Reply]:
    """Encodes the items' predictions and errors, without a custom handler."""
    return [
        encode_error(item.error) if item.error else encode_prediction(item.predictions)
        for item in batch.items
    ]
