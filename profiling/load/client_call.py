"""The form of a client's requests: headers, and how the reply is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from offpath.serving.client import IMAGE_CONTENT_TYPE


def read_labels(reply: bytes) -> dict[str, float]:
    """Reads TorchServe's reply, label -> probability; raises ValueError on anything else."""
    content = json.loads(reply)
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object of labels and probabilities")
    return {str(label): float(value) for label, value in content.items()}


@dataclass(frozen=True)
class Call:
    """The form of a request; the default is TorchServe's.

    Attributes:
        headers: further request headers; a `Content-Type` here wins.
        read_reply: reads the body of a 200 as label -> probability, with at least the best label;
            raises ValueError, KeyError or TypeError on anything else.
        more_paths: paths that take requests in turn with the server's own, for several models.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    read_reply: Callable[[bytes], dict[str, float]] = read_labels
    more_paths: tuple[str, ...] = ()

    @property
    def all_headers(self) -> dict[str, str]:
        return {"Content-Type": IMAGE_CONTENT_TYPE, **self.headers}
