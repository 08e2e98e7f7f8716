"""Loads the classifier of an unpacked .mar, for any server but TorchServe, which loads it itself.

The classifier comes from the archive, with its settings, parity gate, errors, metrics and
prediction log. A server only adds how requests arrive and how replies leave.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from offpath.handler.contract import ArchiveContext, Publish, drop
from offpath.handler.serving_settings import ServingSettings

if TYPE_CHECKING:
    from offpath.handler.classifier import OffpathClassifier

ENTRY, ENTRY_FILE = "offpath_archive_entry", "classifier_entry.py"


def load_classifier(
    folder: Path,
    batch_size: int | None = None,
    gpu: int | None = None,
    threads: int | None = None,
    publish: Publish = drop,
    name: str | None = None,
) -> OffpathClassifier:
    """Loads an archive's classifier into this process.

    Args:
        batch_size: the largest batch that will come; None for the archive's own setting.
        gpu: index of the CUDA device; None for the CPU.
        threads: threads of this process; None for the archive's own setting.
        publish: publishes the classifier's metrics.
        name: name under which the model is served; None for the archive's own.

    Raises:
        OSError: the folder holds no archive.
        TypeError: the archive's custom handler needs TorchServe.
    """
    classifier = load_entry(folder / ENTRY_FILE).BASE
    if hasattr(classifier, "handle"):
        raise TypeError(
            f"only TorchServe calls {classifier.__name__}.handle; serve the archive with "
            "TorchServe, or override postprocess_item, preprocess, inference or postprocess"
        )
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    model = manifest["model"]
    config = yaml.safe_load((folder / model["configFile"]).read_text()) or {}
    if threads is not None:
        config["handler"] = {**(config.get("handler") or {}), "threads": threads}
    size = batch_size or ServingSettings.from_mapping(config).batch_size
    properties = {"model_dir": str(folder), "gpu_id": gpu, "batch_size": size}
    loaded: OffpathClassifier = classifier()
    loaded.initialize(
        ArchiveContext(name or model["modelName"], manifest, config, properties, publish)
    )
    return loaded


def load_entry(path: Path) -> Any:
    """Loads the archive's entry module, which makes `offpath.handler` the archive's own copy."""
    loaded = sys.modules.get(ENTRY)
    if loaded is not None and loaded.__file__ == str(path):
        # Once per process: a second load would replace modules that are in use.
        return loaded
    # Behind the installed packages: the entry makes even an installed offpath use the archive's
    # handler.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(ENTRY, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[ENTRY] = module
    spec.loader.exec_module(module)
    return module
