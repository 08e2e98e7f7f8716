"""The custom service of Multi Model Server: `handle(data, context)`, one answer per request.

https://github.com/awslabs/multi-model-server/blob/master/docs/custom_service.md
"""

from __future__ import annotations

from typing import Any

from offpath.profiling.servers.services.classifiers import Classify, Labels
from offpath.profiling.servers.services.settings import ServiceSettings

_classify: Classify | None = None


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Labels]:
    """Classifies a batch; the first call, with None, is for loading."""
    global _classify
    if _classify is None:
        _classify = ServiceSettings.from_environment().load_classifier()
    if data is None:
        return []
    return _classify([bytes(row.get("data") or row["body"]) for row in data])
