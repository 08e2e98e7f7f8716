"""The contract of an archive with any server: requests become items, and items become replies.

`OffpathClassifier` (classifier.py) is such a classifier. Servers call it: TorchServe through
on_torchserve.py, and all others through serving/service/archived_classifier.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a server's process may have neither torch nor NumPy
    import torch

    from offpath.handler.errors import ItemError
    from offpath.handler.image.decode import Pixels
    from offpath.handler.image.formats import Payload


@dataclass(frozen=True)
class Request:
    """One image to classify.

    Attributes:
        body: an image file, the .npy of a thin client, or a form, JSON or base64 text with one. A
            mapping holds the fields of a form that the server has parsed.
        id: unique; the prediction log's `event_id`.
        headers: text, with names in lower case.
        arrived_s: time by `time.monotonic` of this host at which the body had come; 0 if unknown.
    """

    body: Any
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    arrived_s: float = 0.0


# The status of a reply that is none: `classify` left the image (`leave_costly`).
LEFT = 0


@dataclass(frozen=True)
class Reply:
    """The reply to one request; its body is JSON."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Item:
    """One request on its way to a reply.

    Attributes:
        error: set by the first stage that fails on this item.
        payload: the image's bytes; None if the request holds none.
        target: the class to explain, as the client sent it.
        pixels: the model's input, uint8 [height, width, channels]; None before it is decoded, which
            may be left to a device.
        seconds: spent on READ, DECODE and TRANSFORM; fewer where an error came before.
        index: place of the image in the batch buffer; None before it has one.
        predictions: (label, score), best first.
        outputs: the model's raw outputs, float32 [1, classes]; only for a custom handler.
        extra: a custom handler's addition to the record of the prediction log.
    """

    request: Request
    error: ItemError | None = None
    payload: Payload | None = None
    target: object = None
    pixels: Pixels | None = None
    seconds: Sequence[float] = ()
    index: int | None = None
    predictions: list[tuple[str, float]] = field(default_factory=list)
    outputs: torch.Tensor | None = None
    extra: Mapping[str, Any] | None = None

    @property
    def status(self) -> int:
        """The status of the reply."""
        return 200 if self.error is None else self.error.status


# A server's metrics: adds to a counter or sets a gauge, by its name, its value, whether it is a
# counter, and its labels.
Publish = Callable[[str, float, bool, Mapping[str, str]], None]


def drop(name: str, value: float, is_counter: bool, labels: Mapping[str, str]) -> None:
    """Publishes nothing: the metrics of a server that has none."""


@dataclass(frozen=True)
class ArchiveContext:
    """The facts with which a classifier is loaded, by the names of TorchServe's Context.

    Attributes:
        model_name: the name under which the model is served.
        manifest: the archive's MAR-INF/MANIFEST.json.
        model_yaml_config: its model-config.yaml.
        system_properties: `model_dir`, `gpu_id` (None for the CPU) and `batch_size`.
        publish: publishes the classifier's metrics.
    """

    model_name: str
    manifest: Mapping[str, Any]
    model_yaml_config: Mapping[str, Any]
    system_properties: Mapping[str, Any]
    publish: Publish = drop


class Model(Protocol):
    """The calls that every server makes; another archive's own handler has them too."""

    @property
    def health(self) -> str | None:
        """The reason why this process must be replaced; None while the model works."""

    @property
    def read_s(self) -> float:
        """The seconds that reading the last batch took; 0 if unknown."""

    @property
    def deadline_ms(self) -> int:
        """Milliseconds that every request has at most (deadline.py); 0 is no limit."""

    @property
    def in_flight(self) -> int:
        """The most batches for which `classify` may be called at once, each in a thread."""

    def classify(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch, one reply per request, in order; decodes on threads of its own."""

    def close(self) -> None:
        """Ends the model after its last batch; a classifier writes its metrics and its log."""


class Classifier(Model, Protocol):
    """A loaded archive. `read` may be called from any number of threads at once."""

    def leave_costly(self) -> None:
        """Lets `classify` leave images that would hold up their batch: their reply is LEFT.

        The server then calls `read` in a thread of its own, and `answer`.
        """

    def read(self, request: Request) -> Item:
        """Decodes a request's image; what is wrong with it becomes the item's error."""

    def answer(self, items: Sequence[Item]) -> list[Reply]:
        """Answers a batch, one reply per item, in order; records and counts it."""

    def describe(self) -> dict[str, Any]:
        """Returns device, engine, precision and more."""

    def warm_up(self) -> None:
        """Computes full batches, which are neither recorded nor counted."""
