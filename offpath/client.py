"""The client library: `from offpath.client import Client`."""

from __future__ import annotations

from offpath.serving.client import Client, Prediction, ServerUnreachable

__all__ = ["Client", "ServerUnreachable", "Prediction"]
