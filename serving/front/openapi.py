"""Describes the errors of the HTTP interface in OpenAPI, from the one table of errors."""

from __future__ import annotations

import json

from offpath.handler.error_kinds import (
    BUSY_429,
    ENDS_WORKERS,
    MODEL_GONE,
    OF_DOOR,
    OF_ITEMS,
    WORKER_DIED,
)
from offpath.handler.wire_names import REQUEST_ID_HEADER
from offpath.serving.server.properties import CONF_DIR

OPENAPI = "openapi.json"
KINDS = (*OF_ITEMS, *OF_DOOR, BUSY_429, MODEL_GONE, WORKER_DIED, ENDS_WORKERS)


def render_openapi() -> str:
    """Fills conf/openapi.json with headers, status and types of the responses that are errors."""
    document = json.loads((CONF_DIR / OPENAPI).read_text(encoding="utf-8"))
    responses = document["components"]["responses"]
    for status in sorted({kind.status for kind in KINDS}):
        kinds = [kind for kind in KINDS if kind.status == status]
        response = responses.get(str(status))
        if response is None:  # 405, which no operation of the description gets
            continue
        names = [REQUEST_ID_HEADER]
        if any(kind.is_passing for kind in kinds):
            names.append("Retry-After")
        headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
        response["headers"] = headers | response.get("headers", {})
        types = list(dict.fromkeys(kind.type for kind in kinds))
        response["description"] += f" Types: {', '.join(f'`{name}`' for name in types)}."
        schema = {
            "allOf": [{"$ref": "#/components/schemas/Error"}],
            "properties": {"code": {"const": status}, "type": {"examples": types}},
        }
        response["content"] = {"application/json": {"schema": schema}}
    return json.dumps(document, indent=2)
