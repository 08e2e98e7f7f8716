"""The handler: connects the pipeline's stages to TorchServe, and nothing else.

`handle` is the request path; read it first, then pipeline.py.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ts.context import Context
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.handler.config import INPUT_SETTINGS, HandlerConfig
from offpath.handler.custom_handler import CustomReplies, Result
from offpath.handler.deadline import Deadlines
from offpath.handler.error_kinds import RETRY_AFTER_S
from offpath.handler.errors import DeadlineExceeded, ItemError, ModelOutOfMemory
from offpath.handler.metrics import DECODED_BY_CPU, MetricsEmitter
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.device_errors import is_sticky, name_error
from offpath.handler.model.engines.choose import choose_engine
from offpath.handler.model.engines.engine import FOLDER
from offpath.handler.model.explanations import Explainer
from offpath.handler.model.normalise import Normaliser
from offpath.handler.model.outputs import keep_one_output
from offpath.handler.model.parity import load_parity_set
from offpath.handler.model.weights import make_with_weights
from offpath.handler.pipeline import Batch, Item, Pipeline, set_threads
from offpath.handler.prediction_log.batch_records import make_records
from offpath.handler.prediction_log.prediction_log import PredictionLog, open_prediction_log
from offpath.handler.process.foreign_server import warn_of_losses
from offpath.handler.process.host_limits import count_cores, decode_budget_s
from offpath.handler.process.sick_worker import EXIT_STATUS, ModelHealth, end_after_reply
from offpath.handler.process.warmup import warm_up_payloads
from offpath.handler.process.worker_setup import keep_freed_memory, use_device
from offpath.handler.request.body_from_front_door import DoorBodies, Row
from offpath.handler.request.forms import find_lost_field
from offpath.handler.response import JSON_CONTENT_TYPE, EncodedReply, encode_error, encode_json
from offpath.handler.serving_settings import ServingSettings
from offpath.handler.stages import Stage, StageTimer, format_server_timing
from offpath.handler.wire_names import EXPLAIN_HEADER, WARM_UP_VARIABLE

if TYPE_CHECKING:
    from offpath.handler.tracing import Tracer

logger = logging.getLogger(__name__)


class OffpathClassifier(ImageClassifier):
    """TorchServe's ImageClassifier with nothing but inference on the request's path."""

    def initialize(self, context: Context) -> None:
        """Reads the settings, loads the model and its labels, and warms up; once per worker."""
        self._quiet_worker_log()
        is_custom = type(self).postprocess_item is not OffpathClassifier.postprocess_item
        self._custom_replies = CustomReplies(self) if is_custom else None
        self.config = HandlerConfig.from_mapping(context.model_yaml_config.get("handler"))
        gpu = context.system_properties.get("gpu_id")
        if gpu is not None and torch.cuda.is_available():
            use_device(int(gpu))
        self._door = DoorBodies.from_environment()
        self._deadlines = Deadlines(self.config.deadline_ms)
        self._warm_up_key = os.environ.get(WARM_UP_VARIABLE)
        serving = ServingSettings.from_mapping(context.model_yaml_config)
        threads = self.config.threads or max(1, count_cores() // serving.workers)
        set_threads(threads)
        keep_freed_memory()
        self._version = str(context.manifest["model"].get("modelVersion", ""))
        # Opened before the model is loaded, because the log's shipper imports an S3 client, which
        # takes half a second of CPU.
        self._log: PredictionLog | None = None
        log = self.config.prediction_log
        if not log.is_off:
            self._log = open_prediction_log(log, model=context.model_name, version=self._version)
        super().initialize(context)
        self.topk = self.config.top_k
        folder = Path(context.system_properties["model_dir"]) / FOLDER
        self._choice = choose_engine(self.model, self.config, self.device, folder, threads)
        self.pipeline = Pipeline(
            self.config,
            self._make_runner(context),
            {int(index): label for index, label in (self.mapping or {}).items()},
            threads,
            batch_s=decode_budget_s(serving.response_timeout_s),
        )
        self.pipeline.warm_up(warm_up_payloads(*self.config.input_geometry.shape[:2]))
        self._metrics = MetricsEmitter(
            context.metrics,
            context.model_name,
            self.config.metrics_interval_s,
            None if self._log is None else self._log.counters,
        )
        self._metrics.start(len(self._choice.lost))
        # For servers that know when a request came.
        self.count_requests = self._metrics.count_requests
        self._tracer = self._make_tracer(context)
        self.health = ModelHealth()
        warn_of_losses(context.metrics)

    def preprocess(self, data: Sequence[Row | ItemError]) -> Batch:
        """Turns rows into a batch of images; bad ones become items with an error."""
        return self.pipeline.preprocess(data)

    def inference(self, data: Batch, *args: Any, **kwargs: Any) -> Batch:
        return self.pipeline.inference(data)

    def postprocess(self, data: Batch) -> list[EncodedReply]:
        if self._custom_replies is None:
            return self.pipeline.postprocess(data)
        with data.timer.stage(Stage.POSTPROCESS):
            return self._custom_replies.encode(data, self.context)

    def postprocess_item(self, result: Result) -> object:
        """Returns the body of one reply; a subclass may override it (docs/your-handler.md).

        Returns:
            any value that JSON can hold.

        Raises:
            ItemError: an override may raise it to give this item an error status.
        """
        return dict(result.predictions)

    def handle(self, data: Sequence[Mapping[str, Any]], context: Context) -> list[bytes]:
        """Answers one batch.

        Returns:
            one encoded JSON body per row. A bad item gets its own 4xx. A failure of the model gives
            every item a 503 and does not raise, because TorchServe would answer 507.
        """
        self.context = context
        headers = [context.get_all_request_header(idx) for idx in range(len(data))]
        rows: Sequence[Row] = data
        if self._door is not None:
            rows = self._read_from_door(data, headers, context, self._door)
        batch = None
        try:
            whole = [find_lost_field(row, one) or row for row, one in zip(rows, headers)]
            batch = self.preprocess(self._deadlines.refuse_late(whole, headers))
            # Before explanations, whose failures say nothing about predictions.
            if self.inference(batch).good():
                self.health.note_success()
            replies = self.postprocess(batch)
            replies = self._answer_other_requests(batch, rows, context, replies)
        except Exception as error:
            return self._answer_failed(error, batch, rows, context)
        return self._finish(batch, replies, rows, context)

    def _finish(
        self,
        batch: Batch,
        replies: list[EncodedReply],
        data: Sequence[Row],
        context: Context,
    ) -> list[bytes]:
        """Sets what TorchServe sends, and records and counts the batch."""
        # For the client and the log's records, so both see 0 for the stages that come later: a
        # reply cannot hold the time of its own log entry. The metrics below have all stages.
        timings = batch.timer.read()
        with batch.timer.stage(Stage.POSTPROCESS):
            server_timing = format_server_timing(timings) if self.config.server_timing else None
            bodies = self._send(batch, replies, context, server_timing)
        log, version, key = self.config.prediction_log, self._version, self._warm_up_key
        if self._log is not None:
            with batch.timer.stage(Stage.LOG):
                records = make_records(batch, context, log, version, timings, key)
                self._log.append(records)
        timings = batch.timer.read()
        errors = [item.error.type for item in batch.items if item.error]
        self._metrics.count_batch(timings, len(data), errors)
        if batch.without_memory:
            self._metrics.count(DECODED_BY_CPU, batch.without_memory)
        if not all(isinstance(item.error, DeadlineExceeded) for item in batch.items):
            self._deadlines.learn(timings.total_s)
        if self._door is None and self._connection is not None:
            # Under TorchServe this is the first that we see of a request.
            for item in batch.items:
                status = item.error.status if item.error else 200
                self.count_requests(status, timings.total_s)
        if self._tracer is not None:
            self._tracer.trace(batch, context, key)
        return bodies

    def _answer_failed(
        self,
        error: Exception,
        batch: Batch | None,
        data: Sequence[Row],
        context: Context,
    ) -> list[bytes]:
        """Answers a batch on which the model failed, and ends the worker if it cannot recover.

        Args:
            batch: None if the rows could not be made into a batch.
        """
        health, was_sick = self.health, self.health.diagnosis is not None
        if was_sick and self._connection is not None:
            # The thread that ends this process was late. A reply would only bring the next batch.
            os._exit(EXIT_STATUS)
        item_error = health.fail_batch(error, is_model=batch is not None)
        batch = batch or Batch([Item() for _ in data], StageTimer())
        for item in batch.items:
            if item.error is None:
                item.error = item_error
        bodies = self._finish(batch, self.pipeline.postprocess(batch), data, context)
        is_memory = isinstance(item_error, ModelOutOfMemory)
        self._metrics.count("offpath_out_of_memory_total", is_memory)
        if health.diagnosis is None and is_memory:
            logger.warning("a batch did not fit into memory: %s", name_error(error))
        elif health.diagnosis is None:
            logger.warning("the model failed on a batch", exc_info=error)
        elif not was_sick:
            text = "the model is broken, so this worker must be replaced: %s"
            logger.error(text, health.diagnosis)
            self._metrics.count("offpath_sick_workers_total")
            self._metrics.write()  # the process ends before its thread would
            if self._connection is not None:  # other servers ask for the diagnosis
                end_after_reply(self._connection)
        return bodies

    @property
    def _connection(self) -> socket.socket | None:
        """TorchServe's connection to this worker; None on other servers."""
        return getattr(self.context, "cl_socket", None)

    def close(self) -> None:
        """Ends the threads; the prediction log ships what it can within a few seconds.

        TorchServe never calls this. It kills its workers, and the next worker adopts the segments
        that are left.
        """
        self._metrics.stop()
        if self._log is not None:
            self._log.close()
        if self._tracer is not None:
            self._tracer.close()

    def describe_handle(self) -> dict[str, Any]:
        """Returns the worker's state and settings, for `GET /models/{name}?customized=true`."""
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

    def _load_pickled_model(
        self, model_dir: str, model_file: str, model_pt_path: str | None
    ) -> torch.nn.Module:
        """Maps the weights of a state dict, so that the workers of a host share their pages."""

        def make_model() -> torch.nn.Module:
            model: torch.nn.Module = ImageClassifier._load_pickled_model(
                self, model_dir, model_file, None
            )
            return model

        model = make_with_weights(make_model, model_pt_path) if model_pt_path else make_model()
        return keep_one_output(model, self.config.output)

    def _load_torchscript_model(self, model_pt_path: str) -> torch.nn.Module:
        model = super()._load_torchscript_model(model_pt_path)
        return keep_one_output(model, self.config.output)

    def _make_runner(self, context: Context) -> BatchRunner:
        properties, engine = context.system_properties, self._choice.engine
        batch = max(1, int(properties.get("batch_size") or 1))
        parity = None
        if self.device.type == "cuda":
            parity = load_parity_set(Path(properties["model_dir"]) / FOLDER, self.config)
        is_custom = self._custom_replies is not None
        return BatchRunner(engine, self.config, self.device, batch, parity, is_custom)

    def _make_tracer(self, context: Context) -> Tracer | None:
        if self.config.trace_endpoint == "off":
            return None
        # Imported only if needed: the SDK costs a worker 20 MB and half a second.
        from offpath.handler.tracing import Tracer

        model, version = context.model_name, self._version
        subject = {"offpath.model": model, "service.version": version}
        return Tracer(self.config.trace_endpoint, self.config.trace_share, subject)

    def _send(
        self,
        batch: Batch,
        replies: list[EncodedReply],
        context: Context,
        server_timing: str | None,
    ) -> list[bytes]:
        """Sets each item's status, phrase and headers, and returns the bodies."""
        for idx, (item, reply) in enumerate(zip(batch.items, replies)):
            context.set_response_status(reply.status, reply.phrase, idx)
            context.set_response_content_type(idx, JSON_CONTENT_TYPE)
            if item.error is not None and item.error.is_passing:
                context.set_response_header(idx, "Retry-After", str(RETRY_AFTER_S))
            if server_timing is not None:
                context.set_response_header(idx, "Server-Timing", server_timing)
            if is_grpc(context.get_all_request_header(idx)):
                # Java reads this header for StreamPredictions, and stops the worker without it
                # (GRPCJob.java).
                context.set_response_header(idx, "ts_stream_next", "false")
        return [reply.body for reply in replies]

    @staticmethod
    def _read_from_door(
        data: Sequence[Mapping[str, Any]],
        headers: Sequence[Mapping[str, Any]],
        context: Context,
        door: DoorBodies,
    ) -> list[Row]:
        """Returns rows whose bodies may be files of the front door, and sets the door's ids."""
        # A new dict, because TorchServe matches replies to requests by the old one (ts/service.py).
        context.request_ids = {
            idx: door.request_id(header) or context.get_request_id(idx)
            for idx, header in enumerate(headers)
        }
        return [door.wrap_row(row, header) for row, header in zip(data, headers)]

    def _answer_other_requests(
        self,
        batch: Batch,
        data: Sequence[Row],
        context: Context,
        replies: list[EncodedReply],
    ) -> list[EncodedReply]:
        """Returns the replies with descriptions and explanations in place of predictions.

        TorchServe queues all three kinds of requests together. A client can send the `describe`
        header too, so it only counts on a request without parameters.
        """
        answered = []
        for idx, (item, row, reply) in enumerate(zip(batch.items, data, replies)):
            headers = context.get_all_request_header(idx)
            if headers.get("describe") == "True" and not row:
                item.error = None  # a missing image is no error in this kind of request
                reply = encode_json(self.describe_handle())
            elif headers.get(EXPLAIN_HEADER) == "True" and item.error is None:
                try:
                    reply = self._explainer.explain_item(item, row)
                except Exception as error:
                    if is_sticky(error):
                        raise
                    # The batch's other items have their replies already.
                    item.error = self.health.fail_batch(error, is_model=False)
                    reply = encode_error(item.error)
                    logger.warning("an explanation failed: %s", name_error(error))
            answered.append(reply)
        return answered

    def get_insights(self, tensor_data: torch.Tensor, _: Any, target: int = 0) -> list[Any]:
        """Computes integrated gradients by captum, like VisionHandler but without a line on stdout.

        Args:
            tensor_data: float32 [batch, channels, height, width], normalised.

        Returns:
            attributions as nested lists [batch][channels][height][width]; the channels are in the
            order of the setting `channel_order`.
        """
        attributions = self.ig.attribute(tensor_data, target=target, n_steps=15)
        return list(attributions.tolist())

    @cached_property
    def _explainer(self) -> Explainer:
        config, runner = self.config, self.pipeline.runner
        normaliser = Normaliser(config, runner.device)

        def attribute(index: int, target: int) -> list[Any]:
            inputs = normaliser(runner.image(index))
            attributions: list[Any] = self.get_insights(inputs, None, target)[0]
            return attributions

        return Explainer(attribute, config.explanations, config.max_response_bytes, runner.classes)

    @staticmethod
    def _quiet_worker_log() -> None:
        """Turns off the worker's log line per batch, which Java would have to parse.

        The line is "Backend received inference at"; warnings, errors and metrics stay.
        """
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("ts.metrics.caching_metric").setLevel(logging.INFO)


def is_grpc(headers: Mapping[str, Any]) -> bool:
    """Returns True if a request came over gRPC.

    HTTP requests always have a text header; gRPC requests only have what ts/service.py makes of
    their fields.
    """
    return not any(isinstance(value, str) for value in headers.values())
