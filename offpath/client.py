"""The client library: `from offpath.client import Client`."""

from __future__ import annotations

from offpath.serving.client import (
    AsyncClient,
    Client,
    ModelNotNamed,
    Prediction,
    ServerError,
    ServerUnreachable,
)

__all__ = [
    "AsyncClient",
    "Client",
    "ModelNotNamed",
    "Prediction",
    "ServerError",
    "ServerUnreachable",
]
