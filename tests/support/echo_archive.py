"""Archives with an echo handler, with which a server starts in seconds, and with other handlers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from offpath.serving.server.server_settings import ServerSettings

ECHO_HANDLER = """
import time

class Echo:
    def initialize(self, context):
        section = (context.model_yaml_config or {}).get("handler", {})
        for key in section:
            raise ValueError(f"unknown key {key!r} in handler; accepted: none")

    def handle(self, data, context):
        bodies = [bytes(row.get("body") or b"") for row in data]
        time.sleep(0.05 * bodies.count(b"slow"))
        ids = [context.get_request_id(idx) for idx in range(len(data))]
        return [one if body == b"id" else str(len(body)) for one, body in zip(ids, bodies)]
"""
MODEL_CONFIG = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 4,
    "maxBatchDelay": 5,
    "responseTimeout": 20,
    "startupTimeout": 60,
}

MakeMar = Callable[..., Path]


def write_mar(
    store: Path, name: str = "echo", config: dict | None = MODEL_CONFIG, version: str = "1.0"
) -> Path:
    """Writes `<store>/<name>.mar`, without model-config.yaml when `config` is None."""
    store.mkdir(exist_ok=True)
    files = {"echo.py": ECHO_HANDLER}
    return write_archive(store, name, files, "echo.py", config, modelVersion=version)


def write_archive(
    store: Path,
    name: str,
    files: Mapping[str, str | bytes],
    handler: str,
    config: object,
    runtime: str = "python",
    **entries: str,
) -> Path:
    """Writes `<store>/<name>.mar` with any handler; `entries` are further ones of the manifest."""
    model = {"modelName": name, "modelVersion": "1.0", "handler": handler, **entries}
    if config is not None:
        model["configFile"] = "model-config.yaml"
    manifest = {"model": model, "archiverVersion": "0.12.0", "runtime": runtime}
    path = store / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        for file, text in files.items():
            archive.writestr(file, text)
        if config is not None:
            archive.writestr("model-config.yaml", yaml.safe_dump(config))
    return path


def make_stock(
    folder: Path,
    model_file: Path,
    weights_file: Path,
    handler: str = "image_classifier",
    labels: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    extra: str | None = None,
    version: str = "1.0",
) -> Path:
    """Writes `<folder>/stock.mar` as torch-model-archiver does, by default with a stock handler."""
    folder.mkdir(exist_ok=True)
    files = {path.name: path.read_bytes() for path in (model_file, weights_file)}
    if (script := Path(handler)).is_file():
        files[script.name] = script.read_bytes()
    if labels is not None:
        files["index_to_name.json"] = json.dumps(labels).encode()
    if extra is not None:
        files[extra] = b"anything"
    parts = {"modelFile": model_file.name, "serializedFile": weights_file.name}
    return write_archive(folder, "stock", files, script.name, config, modelVersion=version, **parts)


def make_settings(*archives: Path, **changes: object) -> ServerSettings:
    """Makes settings for archives of one store, on free ports."""
    fields = {
        "model_store": archives[0].parent,
        "models": tuple(path.name for path in archives),
        "inference_port": 0,
        "metrics_port": 0,
    }
    return ServerSettings(**{**fields, **changes})
