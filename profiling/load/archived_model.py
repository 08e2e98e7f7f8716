"""The user's own model, out of a .mar: definition, weights, labels and preprocessing.

Other servers load it from the files, so they lie in a cache, named by the archive's checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from offpath.archive.labels import check_label_count, read_labels
from offpath.archive.model_probe import count_classes
from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.handler.config import INPUT_SETTINGS, HandlerConfig
from offpath.handler.errors import WrongOption
from offpath.profiling.core.workplace import cache_folder
from offpath.serving.mar_file import MANIFEST, read_mar

LABELS = "index_to_name.json"
# What of `handler:` belongs to the model; the rest is how our server runs it.
PREPROCESSING = (*INPUT_SETTINGS, "activation")
# Enough to tell archives apart.
DIGITS = 12


def identify_archive(path: Path) -> str:
    """Its name and the first digits of its SHA-256: what a result says of it."""
    return f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]}"


def load_archived_model(path: Path) -> ModelSource:
    """Loads what `offpath archive` or torch-model-archiver packed; its handler is not run.

    Raises:
        WrongOption: no archive, TorchScript in it, no labels, or weights that are no state dict.
    """
    section = (read_mar(path).model_config or {}).get("handler") or {}
    model_file, weights, labels_file = extract_model(path)
    source = load_model_source(str(model_file), str(weights))
    handler = {key: section[key] for key in PREPROCESSING if key in section}
    labels = read_labels(labels_file)
    geometry = HandlerConfig.from_mapping(handler, environ={}).input_geometry
    classes = count_classes(source.module, geometry)
    check_label_count(labels, classes, f"{path.name}: {LABELS}")
    return replace(source, labels=labels, handler=handler)


def is_models_own(name: str) -> bool:
    """Whether a file of an archive is a module that the model's definition may import."""
    is_ours = name.partition("/")[0] in ("offpath", "classifier_entry.py")
    return name.endswith(".py") and not is_ours


def extract_model(path: Path) -> tuple[Path, Path, Path]:
    """Unpacks the three files and the model's own modules, once for each archive.

    Returns:
        the model's definition, its state dict, its labels.
    """
    with zipfile.ZipFile(path) as archive:
        model = json.loads(archive.read(MANIFEST))["model"]
        files = (model.get("modelFile"), model.get("serializedFile"))
        if not set(files) <= set(archive.namelist()):
            raise WrongOption(
                f"{path.name} has no model file with weights (TorchScript, or a handler that makes"
                " its own model); the other servers need the class: build it with `offpath archive"
                " --model FILE.py --weights FILE`"
            )
        if LABELS not in archive.namelist():
            raise WrongOption(
                f"{path.name} has no {LABELS}: answers are compared by label; build it with"
                " `offpath archive --labels FILE`"
            )
        modules = [name for name in archive.namelist() if is_models_own(name)]
        folder = cache_folder() / "models" / identify_archive(path)
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                whole = Path(scratch) / "whole"
                whole.mkdir()
                for name in {*files, LABELS, *modules}:
                    archive.extract(name, whole)
                if not folder.is_dir():
                    os.replace(whole, folder)
    definition, weights, labels = (folder / name for name in (*files, LABELS))
    return definition, weights, labels
