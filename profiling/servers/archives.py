"""The .mar files under test: ours, and one with TorchServe's stock image_classifier."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archive.build import ArchiveSpec, build_archive
from archive.labels import format_index_to_name
from archive.model_config import format_model_config, load_preset, make_model_config
from offpath.errors import ExpectedError
from profiling.model_under_test import ModelUnderTest

NAME = "classifier"
BASELINES_DIR = Path(__file__).parents[1] / "baselines"
# The stock handler normalises by ImageNet's mean and deviation; Lite models were trained on others.
STOCK_HANDLERS = {"efficientnet-lite0": str(BASELINES_DIR / "stock_lite_handler.py")}


def offpath_config(model: ModelUnderTest, cores: int) -> dict[str, Any]:
    """The cpu preset with one worker a core."""
    server = {"minWorkers": cores, "maxWorkers": cores}
    return make_model_config(load_preset("cpu"), server, model.source.handler)


def build_offpath(
    model: ModelUnderTest, config: Mapping[str, Any], folder: Path
) -> Path:
    """Our archive, as `offpath archive` builds it."""
    spec = ArchiveSpec(NAME, "1.0", model.source, model.labels, model.name, config)
    return build_archive(spec, folder)


def build_stock(
    model: ModelUnderTest, config: Mapping[str, Any] | None, folder: Path
) -> Path:
    """The stock handler's archive, by torch-model-archiver; `config` None leaves out the YAML."""
    with tempfile.TemporaryDirectory(prefix="offpath-bench-") as scratch:
        weights = Path(scratch) / "weights.pt"
        model.save_weights(weights)
        labels = Path(scratch) / "index_to_name.json"
        labels.write_text(format_index_to_name(model.labels), encoding="utf-8")
        options = []
        if config is not None:
            path = Path(scratch) / "model-config.yaml"
            path.write_text(format_model_config(config), encoding="utf-8")
            options = ["--config-file", str(path)]
        command = [
            *(sys.executable, "-m", "model_archiver.model_packaging"),
            *("--model-name", NAME, "--version", "1.0"),
            *("--model-file", str(model.model_file)),
            *("--serialized-file", str(weights)),
            *("--handler", STOCK_HANDLERS.get(model.name, "image_classifier")),
            *("--extra-files", str(labels)),
            *("--export-path", str(folder), "--force"),
            *options,
        ]
        # The archiver deletes and refills $TMPDIR/<model name>: it gets a folder of its own.
        own_tmp = Path(scratch) / "tmp"
        own_tmp.mkdir()
        done = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": str(own_tmp)},
            capture_output=True,
            text=True,
        )
        shutil.rmtree(own_tmp, ignore_errors=True)
    if done.returncode:
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    return folder / f"{NAME}.mar"
