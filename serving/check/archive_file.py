"""An archive on disk: whether this host serves it as it asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, ExpectedError
from offpath.serving.check.finding import Finding, lost, ok, wrong
from offpath.serving.check.host import has_gpu
from offpath.serving.mar_file import MarFile, read_mar
from offpath.serving.torchserve.effective import CHECKED_SETTINGS

CONVERT = "offpath archive --from {path}"


def check_archive(path: Path) -> Iterator[Finding]:
    """Findings about one .mar."""
    area = path.name
    try:
        archive = read_mar(path)
    except ExpectedError as error:
        yield wrong(area, "archive", str(error), "offpath archive ...")
        return
    model = f"{archive.model_name} {archive.model_version}"
    if archive.has_our_handler:
        yield ok(area, "handler", f"offpath's, model {model}")
    else:
        found = f"{archive.handler}, model {model}: nothing of offpath's"
        yield lost(area, "handler", found, CONVERT.format(path=path))
    if archive.model_config is None:
        found = "no model-config.yaml: batch size 1 unless the register API says more"
        yield lost(area, "batch settings", found, CONVERT.format(path=path))
        return
    yield from _check_settings(area, archive.model_config)
    yield _check_device(area, archive.model_config)
    yield from _check_workers(area, archive.model_config)
    if archive.has_our_handler:
        yield _check_handler(area, archive)


def _check_settings(area: str, config: dict[str, Any]) -> Iterator[Finding]:
    # TorchServe takes whole numbers from 1 and ignores others (serving/torchserve/effective.py).
    ignored = [
        key
        for key in CHECKED_SETTINGS
        if key in config and not (type(config[key]) is int and config[key] >= 1)
    ]
    for key in ignored:
        found = f"{config[key]!r}: TorchServe takes whole numbers from 1"
        yield wrong(area, key, found, f"{key}: 1")
    if not ignored:
        found = f"batch {config.get('batchSize', 1)}, delay {config.get('maxBatchDelay', 100)} ms"
        yield ok(area, "batch settings", found)


def _check_device(area: str, config: dict[str, Any]) -> Finding:
    device = config.get("deviceType", "cpu")
    if device == "gpu" and not has_gpu():
        cure = "offpath archive --preset cpu ..., or a GPU; offpath serve --allow-cpu"
        return wrong(
            area, "device", "asks for a GPU, and torch sees none on this host", cure
        )
    return ok(area, "device", device)


def _check_workers(area: str, config: dict[str, Any]) -> Iterator[Finding]:
    workers, cores = config.get("maxWorkers"), len(os.sched_getaffinity(0))
    if not isinstance(workers, int):
        return
    section = config.get("handler")
    threads = section.get("threads", 0) if isinstance(section, dict) else 0
    if isinstance(threads, int) and workers * max(1, threads) > cores:
        found = f"{workers} with {max(1, threads)} threads each on {cores} cores"
        cure = f"offpath archive --workers {cores} ... (threads follow)"
        yield lost(area, "workers", found, cure)
    else:
        yield ok(area, "workers", workers)


def _check_handler(area: str, archive: MarFile) -> Finding:
    section = (archive.model_config or {}).get("handler")
    try:
        config = HandlerConfig.from_mapping(section, environ={})
    except ConfigError as error:
        return wrong(area, "handler settings", str(error), "offpath archive --set ...")
    found = (
        f"{config.image_size} px, top {config.top_k}, log {config.prediction_log.uri}"
    )
    return ok(area, "handler settings", found)
