"""The naive handler's archive, by torch-model-archiver."""

from __future__ import annotations

import json
from pathlib import Path

from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers import archives

CONFIG_NAME = "naive_config.json"


def build_naive(model: ModelUnderTest, folder: Path) -> Path:
    """Builds `<folder>/classifier.mar`.

    It holds no model-config.yaml: whoever writes such a handler sets the batch size in
    config.properties, where TorchServe silently ignores it, and stays at one picture a batch.
    """
    handler = archives.BASELINES_DIR / "naive_handler.py"
    config = {CONFIG_NAME: json.dumps(_make_config(model))}
    return archives.run_archiver(model, str(handler), folder, extra_files=config)


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
        "top_k": model.top_k,
    }
