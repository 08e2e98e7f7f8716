"""The client library: `from offpath.client import Client`."""

from __future__ import annotations

from offpath.serving.client import (
    Client,
    ModelNotNamed,
    ServerError,
    ServerUnreachable,
)
from offpath.serving.prediction import Prediction

__all__ = ["Client", "ModelNotNamed", "Prediction", "ServerError", "ServerUnreachable"]
