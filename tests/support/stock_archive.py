"""An archive with TorchServe's own handler, made by torch-model-archiver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml


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
    files = []
    if labels is not None:
        files.append(folder / "index_to_name.json")
        files[-1].write_text(json.dumps(labels))
    if extra is not None:
        files.append(folder / extra)
        files[-1].write_text("anything")
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--force"]
    command += ["--model-name", "stock", "--version", version, "--handler", handler]
    command += ["--model-file", str(model_file), "--serialized-file", str(weights_file)]
    command += ["--export-path", str(folder)]
    if files:
        command += ["--extra-files", ",".join(map(str, files))]
    if config is not None:
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))
        command += ["--config-file", str(folder / "model-config.yaml")]
    # torch-model-archiver empties $TMPDIR/<model name>.
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(scratch)}
    subprocess.run(command, env=env, check=True, capture_output=True)
    return folder / "stock.mar"
