"""An archive with TorchServe's own handler, or another one, as torch-model-archiver packs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.echo_archive import write_archive


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
    """Writes `<folder>/stock.mar`."""
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
