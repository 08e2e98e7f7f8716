"""How a client calls a server: what it sends, with which headers, and how it reads the reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# The file as it is; or a uint8 [size, size, 3] npy that the client made of it: a thin client.
JPEG, NPY = "jpeg", "npy"


def read_labels(reply: bytes) -> dict[str, float]:
    """TorchServe's answer: a JSON object, label -> probability.

    Raises:
        ValueError: it is something else.
    """
    content = json.loads(reply)
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object of labels and probabilities")
    return {str(label): float(value) for label, value in content.items()}


@dataclass(frozen=True)
class Call:
    """One request's form; the default is TorchServe's.

    Attributes:
        content: JPEG or NPY. The npy files are made before the run: what a thin client spends on
            its own machine is not the server's.
        headers: further request headers; a `Content-Type` here wins.
        wrap: turns the content's bytes into the body (an envelope around them); before the run too.
        read_reply: the body of a 200 -> label -> probability, at least the best one; raises
            ValueError, KeyError or TypeError on anything else.
    """

    content: str = JPEG
    headers: Mapping[str, str] = field(default_factory=dict)
    wrap: Callable[[bytes], bytes] | None = None
    read_reply: Callable[[bytes], dict[str, float]] = read_labels

    @property
    def all_headers(self) -> dict[str, str]:
        """The request's headers with `Content-Type`."""
        # Imported here: programs of servers under test import this module and must stay small.
        from offpath.serving.client import IMAGE_CONTENT_TYPE, NPY_CONTENT_TYPE

        content_types = {JPEG: IMAGE_CONTENT_TYPE, NPY: NPY_CONTENT_TYPE}
        return {"Content-Type": content_types[self.content], **self.headers}
