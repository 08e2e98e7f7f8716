"""Custom handlers: subclasses of OffpathClassifier that decide the content of each reply.

    class Defects(OffpathClassifier):
        def postprocess_item(self, result: Result) -> object:
            best = result.predictions[0]
            result.log["verdict"] = verdict = "reject" if best.probability > 0.8 else "look"
            return {"verdict": verdict, "label": best.label}

An exception, or a value that JSON cannot hold, fails only its own item: docs/your-handler.md.
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

import torch

from offpath.handler.announcer import Announcer
from offpath.handler.contract import Item, Reply
from offpath.handler.errors import ItemError, PostprocessFailed, without_frames
from offpath.handler.reply import encode_error, encode_json, encode_prediction
from offpath.handler.wire_names import EXPLAIN_HEADER, PREFIX

logger = logging.getLogger(__name__)
# A file in the archive that names the class, for instance `my_handler:Defects`. It lies beside the
# package's folder `handler`.
MARK_FILE = "custom_handler.txt"
MAX_MESSAGE_CHARS = 200
FAILED = "the custom handler failed on this image; the worker's log says why"


class ClassProbability(NamedTuple):
    """The label and the probability of one class."""

    label: str
    probability: float


@dataclass(slots=True)
class Result:
    """The model's result for one image.

    Attributes:
        predictions: best first, as many as the settings' `top_k` or `threshold` leave.
        request_id: the reply header `x-request-id` and the prediction log's `event_id`.
        headers: the request's headers, with names in lower case.
        log: JSON values to store as the field `extra` of the prediction log's record.
        outputs: the model's raw outputs, float32 [1, classes], on the CPU.
    """

    predictions: list[ClassProbability]
    request_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    outputs: torch.Tensor | None = None


class CustomHandler(Protocol):
    """The method that a custom handler overrides."""

    def postprocess_item(self, result: Result) -> object:
        """Returns the body of the reply, as a value that JSON can hold."""


class CustomReplies:
    """Asks a custom handler for each item's reply, and confines its failures to their items."""

    def __init__(self, handler: CustomHandler) -> None:
        self._handler = handler
        subject = type(handler).postprocess_item.__qualname__
        self._announcer = Announcer(logger, subject)

    def encode(self, item: Item) -> Reply:
        """Encodes one item as a reply; an item that fails gets its error."""
        if item.error is not None:
            return encode_error(item.error)
        if item.request.headers.get(EXPLAIN_HEADER) == "True":
            # The classifier replaces this reply by the explanation.
            return encode_prediction([])
        return self._answer(item, make_result(item))

    def _answer(self, item: Item, result: Result) -> Reply:
        try:
            reply = encode_json(self._handler.postprocess_item(result))
            if result.log:
                # Encoded as a check: later it would fail the records of the whole batch.
                encode_json(result.log)
                item.extra = result.log
            return reply
        except ItemError as error:
            if is_sendable(error):
                item.error = without_frames(error)
                return encode_error(item.error)
            self._announce(error, "its status, type or message cannot be sent")
        except (Exception, SystemExit) as error:  # `sys.exit` would end the batch's thread
            self._announce(error, str(error))
        item.error = PostprocessFailed(FAILED)
        return encode_error(item.error)

    def _announce(self, error: BaseException, message: str) -> None:
        """Logs a failure at most once in ten minutes per line of code.

        Without this limit every request of a client could write to the log.
        """
        code = type(self._handler).postprocess_item.__code__
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == code.co_filename
        ]
        # No line of the custom handler is in the traceback if its value is not JSON.
        where = f"{Path(code.co_filename).name}, line {lines[-1] if lines else code.co_firstlineno}"
        # Escaped, because a message can hold data from the client.
        escaped = ascii(message[:MAX_MESSAGE_CHARS])
        kind = f"{type(error).__name__} in {where}"
        self._announcer.announce(kind, f"{kind}: {escaped}; the item gets a 500")


def make_result(item: Item) -> Result:
    # The front door's headers include its key.
    given = item.request.headers.items()
    headers = {name: value for name, value in given if not name.startswith(PREFIX)}
    typed = [ClassProbability(*one) for one in item.predictions]
    return Result(typed, item.request.id, headers, outputs=item.outputs)


def is_sendable(error: ItemError) -> bool:
    """Returns True if replies and metrics can carry a custom handler's error."""
    return (
        isinstance(error.status, int)
        and 400 <= error.status < 600
        and isinstance(error.message, str)
        and error.type.isascii()
    )


def find_handler(package: Path, default: type) -> type:
    """Loads the custom handler of an archive.

    Args:
        package: the archive's folder `offpath`.
        default: class to return if the archive has no custom handler.

    Raises:
        ImportError: the file that the archive names, or a package that it needs, is missing.
    """
    mark = package / MARK_FILE
    if not mark.is_file():
        return default
    name, _, class_name = mark.read_text(encoding="utf-8").strip().partition(":")
    # Loaded by its path, because a user's PYTHONPATH comes before the archive
    # (EnvironmentUtils.java).
    spec = importlib.util.spec_from_file_location(name, package.parent / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py in the archive cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name != "ts":
            raise
        raise ImportError(
            f"{name}.py needs TorchServe's classes: pip install torchserve"
        ) from error
    found: type = getattr(module, class_name)
    return found
