"""Checks an archive on disk: can this host serve it as it asks?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import LABELS_CURE, NO_LABELS, MarFile, read_mar
from offpath.archive.model_config import DEVICE_TYPES
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.serving.check.host import has_gpu
from offpath.serving.finding import Finding, lost, ok, wrong
from offpath.serving.torchserve.in_force import (
    CPU_INSTEAD,
    DEVICE,
    MODEL_SETTINGS,
    WHOLE_NUMBERS,
    is_ignored,
)

CONVERT = "offpath archive --from {path}"


def check_archive(path: Path) -> Iterator[Finding]:
    """Yields findings about one .mar."""
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
        found = f"{archive.handler}, model {model}; not offpath's"
        yield lost(area, "handler", found, CONVERT.format(path=path))
    if archive.model_config is None:
        found = "no model-config.yaml: batch size 1 unless the register API sets another"
        yield lost(area, "batch settings", found, CONVERT.format(path=path))
        return
    yield from _check_settings(area, archive.model_config)
    yield _check_device(area, archive.model_config)
    yield from _check_workers(area, archive.model_config)
    if archive.has_our_handler:
        yield _check_handler(area, archive)
    yield from check_labels(area, archive)


def check_labels(area: str, archive: MarFile) -> Iterator[Finding]:
    """Yields a finding about an archive of ours without labels."""
    if archive.lacks_labels:
        yield lost(area, "labels", NO_LABELS, LABELS_CURE)


def _check_settings(area: str, config: dict[str, Any]) -> Iterator[Finding]:
    ignored = [key for key in MODEL_SETTINGS if key in config and is_ignored(config[key])]
    for key in ignored:
        yield wrong(area, key, f"{config[key]!r}: {WHOLE_NUMBERS}", f"{key}: 1")
    if not ignored:
        found = f"batch {config.get('batchSize', 1)}, delay {config.get('maxBatchDelay', 100)} ms"
        yield ok(area, "batch settings", found)


def _check_device(area: str, config: dict[str, Any]) -> Finding:
    device = config.get(DEVICE, "cpu")
    if device not in DEVICE_TYPES:
        return wrong(area, "device", f"{device!r:.80}", f"{DEVICE}: {' or '.join(DEVICE_TYPES)}")
    if device == "gpu" and not has_gpu():
        found = "the archive asks for a GPU, and torch finds none on this host"
        return wrong(area, "device", found, CPU_INSTEAD)
    return ok(area, "device", device)


def _check_workers(area: str, config: dict[str, Any]) -> Iterator[Finding]:
    workers, cores = config.get("maxWorkers"), count_cores()
    if not isinstance(workers, int):
        return
    section = config.get("handler")
    threads = section.get("threads", 0) if isinstance(section, dict) else 0
    if isinstance(threads, int) and workers * max(1, threads) > cores:
        found = f"{workers} with {max(1, threads)} threads each on {cores} cores"
        cure = f"offpath archive --workers {cores} ... (sets the threads too)"
        yield lost(area, "workers", found, cure)
    else:
        yield ok(area, "workers", workers)


def _check_handler(area: str, archive: MarFile) -> Finding:
    section = (archive.model_config or {}).get("handler")
    try:
        config = HandlerConfig.from_mapping(section, environ={})
    except ConfigError as error:
        return wrong(area, "handler settings", str(error), "offpath archive --set ...")
    found = f"{config.image_size} px, top {config.top_k}, log {config.prediction_log.uri}"
    return ok(area, "handler settings", found)
