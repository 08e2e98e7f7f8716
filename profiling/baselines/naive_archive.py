"""The naive handler's archive, by torch-model-archiver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from archive.labels import format_index_to_name
from offpath.errors import ExpectedError
from profiling.model_under_test import ModelUnderTest
from profiling.servers import archives

CONFIG_NAME = "naive_config.json"


def build_naive(model: ModelUnderTest, folder: Path) -> Path:
    """Builds `<folder>/classifier.mar`.

    It holds no model-config.yaml: whoever writes such a handler sets the batch size in
    config.properties, where TorchServe silently ignores it, and stays at one picture a batch.
    """
    with tempfile.TemporaryDirectory(prefix="offpath-profile-") as name:
        scratch = Path(name)
        command = _make_command(model, scratch, folder)
        # The archiver deletes and refills $TMPDIR/<model name>: it gets a folder of its own.
        own_tmp = scratch / "tmp"
        own_tmp.mkdir()
        done = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": str(own_tmp)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    return folder / f"{archives.NAME}.mar"


def _make_command(model: ModelUnderTest, scratch: Path, folder: Path) -> list[str]:
    weights, labels = scratch / "weights.pt", scratch / "index_to_name.json"
    model.save_weights(weights)
    labels.write_text(format_index_to_name(model.labels), encoding="utf-8")
    config = scratch / CONFIG_NAME
    config.write_text(json.dumps(_make_config(model)), encoding="utf-8")
    return [
        *(sys.executable, "-m", "model_archiver.model_packaging"),
        *("--model-name", archives.NAME, "--version", "1.0"),
        *("--model-file", str(model.model_file), "--serialized-file", str(weights)),
        *("--handler", str(archives.BASELINES_DIR / "naive_handler.py")),
        *("--extra-files", f"{labels},{config}"),
        *("--export-path", str(folder), "--force"),
    ]


def _make_config(model: ModelUnderTest) -> dict[str, object]:
    """The committed file with the model's own preprocessing: models differ in it."""
    text = (archives.BASELINES_DIR / CONFIG_NAME).read_text(encoding="utf-8")
    config = model.config
    return {
        **json.loads(text),
        "resize_size": config.resize_size,
        "image_size": config.image_size,
        "mean": config.mean,
        "std": config.std,
        "top_k": config.top_k,
    }
