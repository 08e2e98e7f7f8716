"""A handler of one's own: a subclass of OffpathClassifier that says what each answer holds.

    class Defects(OffpathClassifier):
        def postprocess_item(self, result: Result) -> object:
            best = result.predictions[0]
            result.log["verdict"] = verdict = "reject" if best.probability > 0.8 else "look"
            return {"verdict": verdict, "label": best.label}

What it raises, or returns that is no JSON, fails its item alone: docs/your-handler.md.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from offpath.handler.errors import ItemError, PostprocessFailed
from offpath.handler.pipeline import Batch, Item, without_frames
from offpath.handler.prediction_log import batch_records
from offpath.handler.prediction_log.delivery_failures import Announcer
from offpath.handler.response import (
    Reply,
    encode_error,
    encode_json,
    encode_prediction,
)

logger = logging.getLogger(__name__)
# In the archive, beside the package's folder `handler`: `my_handler:Defects`.
MARK_FILE = "own_handler.txt"
# The front door's words to the worker, its key among them, are nobody else's.
DOOR_HEADERS = "x-offpath-"
MESSAGE_SHOWN = 200
FAILED = "the model's own postprocessing failed on this picture; its log says why"


class Prediction(NamedTuple):
    """One class of an answer."""

    label: str
    probability: float


class RequestContext(batch_records.RequestContext, Protocol):
    """What the records of the log need to know of a request, and one header of it."""

    def get_request_header(self, idx: int, key: str) -> str | None:
        """One header."""


@dataclass(slots=True)
class Result:
    """What the model says of one picture.

    Attributes:
        predictions: best first, as many as `top_k` or the threshold of the settings leave.
        request_id: the reply header `x-request-id`, the prediction log's `event_id`.
        headers: the request's, their names in lower case.
        log: what is put here is the field `extra` of the prediction log's record; JSON.
    """

    predictions: list[Prediction]
    request_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)


class Postprocess(Protocol):
    """A handler's own part."""

    def postprocess_item(self, result: Result) -> object:
        """A result -> the reply's body, as what JSON can hold."""


class OwnAnswers:
    """Asks a handler for each item's answer and keeps its failures to their items.

    Args:
        own: whose `postprocess_item` is asked.
    """

    def __init__(self, own: Postprocess) -> None:
        self._own = own
        self._announcer = Announcer(logger, type(own).postprocess_item.__qualname__)

    def encode(self, batch: Batch, context: RequestContext) -> list[Reply]:
        """Items -> encoded replies, in the rows' order; an item that fails gets its error."""
        replies = []
        for idx, item in enumerate(batch.items):
            if item.error is not None:
                replies.append(encode_error(item.error))
            elif context.get_request_header(idx, "explain") == "True":
                # Replaced by whoever asks the model for explanations.
                replies.append(encode_prediction([]))
            else:
                result = make_result(item.predictions, context, idx)
                replies.append(self._answer(item, result))
        return replies

    def _answer(self, item: Item, result: Result) -> Reply:
        try:
            reply = encode_json(self._own.postprocess_item(result))
            if result.log:
                encode_json(
                    result.log
                )  # refused here, not in the log's batch of records
                item.extra = result.log
            return reply
        except ItemError as error:
            if is_sendable(error):
                item.error = without_frames(error)
                return encode_error(item.error)
            self._announce(error, "its status, phrase, type or message cannot be sent")
        except Exception as error:
            self._announce(error, str(error))
        item.error = PostprocessFailed(FAILED)
        return encode_error(item.error)

    def _announce(self, error: Exception, message: str) -> None:
        """Once in ten minutes for each place: a client's every request may end here."""
        code = type(self._own).postprocess_item.__code__
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == code.co_filename
        ]
        # Without a line of theirs: what they returned is no JSON.
        where = f"{Path(code.co_filename).name}, line {lines[-1] if lines else code.co_firstlineno}"
        # A message can hold what a client sent.
        said = ascii(message[:MESSAGE_SHOWN])
        kind = f"{type(error).__name__} in {where}"
        self._announcer.announce(kind, f"{kind}: {said}; the item gets a 500")


def make_result(
    predictions: list[tuple[str, float]], context: RequestContext, idx: int
) -> Result:
    """The typed result of one item."""
    headers = {
        name.lower(): value
        for name, value in context.get_all_request_header(idx).items()
        if not name.lower().startswith(DOOR_HEADERS)
    }
    typed = [Prediction(*one) for one in predictions]
    return Result(typed, context.get_request_id(idx) or "", headers)


def is_sendable(error: ItemError) -> bool:
    """Whether TorchServe's protocol and the metrics take an error that is not one of ours."""
    words = (error.phrase, error.type)
    return (
        isinstance(error.status, int)
        and 400 <= error.status < 600
        and isinstance(error.message, str)
        and all(isinstance(w, str) and w.isascii() and w.isprintable() for w in words)
    )


def find_handler(package: Path, default: type) -> type:
    """The class that an archive's mark names, or `default` without one.

    Args:
        package: the archive's folder `offpath`.
    """
    mark = package / MARK_FILE
    if not mark.is_file():
        return default
    name, _, class_name = mark.read_text(encoding="utf-8").strip().partition(":")
    # By its place: a user's PYTHONPATH comes before the archive (EnvironmentUtils.java).
    spec = importlib.util.spec_from_file_location(name, package.parent / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py in the archive cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: type = getattr(module, class_name)
    return found
