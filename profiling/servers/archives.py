"""The archives under test: ours, the stock image_classifier's and the naive handler's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from offpath.archive.build import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ArchiveSpec,
    build_archive,
    format_index_to_name,
)
from offpath.archive.mar_file import LABELS, write_mar
from offpath.archive.model_config import (
    check_model_config,
    format_model_config,
    load_preset,
    make_model_config,
)
from offpath.errors import ExpectedError
from offpath.handler.serving_settings import name_keys
from offpath.profiling.load.model_under_test import ModelUnderTest

NAME = "classifier"
BASELINES_DIR = Path(__file__).parents[1] / "baselines"
# Values that are fixed in the stock handler, which fails on models with fewer classes.
STOCK_SETTINGS = {
    "top_k": 5,
    "resize_size": 256,
    "image_size": 224,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


# Values that not even a subclass of the stock handler can change.
STOCK_FIXED = {
    "activation": "softmax",
    "channels": 3,
    "channel_order": "rgb",
    "pixel_scale": 1,
    "resize": "shorter",
    "interpolation": "bilinear",
}


def host_preset() -> str:
    return "t4" if torch.cuda.is_available() else "cpu"


def offpath_config(model: ModelUnderTest, cores: int, **handler: Any) -> dict[str, Any]:
    """Returns the host's preset with one worker per core, and further `handler` settings."""
    server = name_keys(min_workers=cores, max_workers=cores)
    settings = {**model.source.handler, **handler}
    return make_model_config(load_preset(host_preset()), server, settings).settings


def build_offpath(model: ModelUnderTest, config: Mapping[str, Any], folder: Path) -> Path:
    """Builds our archive as `offpath archive` does, with the engine that the settings ask for."""
    spec = ArchiveSpec(
        NAME,
        "1.0",
        model.source,
        model.labels,
        model.name,
        check_model_config(config),
        checks_answers=True,
    )
    return build_archive(spec, folder).path


def build_for_export(model: ModelUnderTest, workers: int, batch_size: int, folder: Path) -> Path:
    store = folder / "store"
    store.mkdir()
    keys = name_keys(batch_size=batch_size)
    return build_offpath(model, {**offpath_config(model, workers), **keys}, store)


def build_stock(model: ModelUnderTest, config: Mapping[str, Any], folder: Path) -> Path:
    own = read_preprocessing(model)
    if own == STOCK_SETTINGS:
        return pack(model, "image_classifier", folder, config)
    extra = {"stock_settings.json": json.dumps(own)}
    return pack(model, BASELINES_DIR / "stock_handler.py", folder, config, extra)


def build_naive(model: ModelUnderTest, _: Mapping[str, Any], folder: Path) -> Path:
    """Builds the archive of a typical first handler.

    It has no model-config.yaml. The author of such a handler sets the batch size in
    config.properties, where TorchServe silently ignores it, and stays at one image per batch.
    """
    extra = {"naive_config.json": json.dumps(read_preprocessing(model))}
    return pack(model, BASELINES_DIR / "naive_handler.py", folder, {}, extra)


def read_preprocessing(model: ModelUnderTest) -> dict[str, Any]:
    """Returns the model's values of STOCK_SETTINGS; raises ExpectedError if STOCK_FIXED differ."""
    for key, fixed in STOCK_FIXED.items():
        value = getattr(model.config, key)
        if value != fixed:
            raise ExpectedError(
                f"model {model.name!r} has {key} {value}, and TorchServe's own handler {fixed}; "
                "leave the stock servers out (--servers offpath)"
            )
    own = {key: getattr(model.config, key) for key in STOCK_SETTINGS}
    size = model.config.input_geometry.size
    return own | {"top_k": model.top_k, "image_size": size}


def pack(
    model: ModelUnderTest,
    handler: str | Path,
    folder: Path,
    config: Mapping[str, Any],
    extra_files: Mapping[str, str] = {},
) -> Path:
    """Writes an archive with another handler, as torch-model-archiver does.

    Args:
        handler: name of a built-in handler, or a file.
        config: content of model-config.yaml; empty for no such file.
        extra_files: name -> content of files beside weights and labels.
    """
    described = {
        **{"modelName": NAME, "modelVersion": "1.0", "handler": Path(handler).name},
        **{"modelFile": model.model_file.name, "serializedFile": WEIGHTS_FILE},
    }
    texts = {LABELS: format_index_to_name(model.labels), **extra_files}
    if config:
        described["configFile"] = CONFIG_FILE
        texts[CONFIG_FILE] = format_model_config(config)
    files: dict[str, bytes | Path] = {
        **{name: text.encode() for name, text in texts.items()},
        **model.source.files,
        **{model.model_file.name: model.model_file, WEIGHTS_FILE: model.save_weights()},
    }
    if isinstance(handler, Path):
        files[handler.name] = handler
    path = folder / f"{NAME}.mar"
    write_mar(path, {"runtime": "python", "model": described}, files)
    return path
