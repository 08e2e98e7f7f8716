"""The custom service of Multi Model Server: `handle(data, context)`, one answer per request.

https://github.com/awslabs/multi-model-server/blob/master/docs/custom_service.md
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offpath.profiling.servers.models.classifiers import (
    Classify,
    Labels,
    load_classifier,
)

# In the archive; MMS has no place for a service's own settings.
SETTINGS_FILE = "classifier_settings.json"

_classify: Classify | None = None


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Labels]:
    """Classifies a batch; the first call, with None, is for loading."""
    global _classify
    if _classify is None:
        folder = Path(context.system_properties["model_dir"])
        _classify = load_classifier(**json.loads((folder / SETTINGS_FILE).read_text()))
    if data is None:
        return []
    return _classify([bytes(row.get("data") or row["body"]) for row in data])
