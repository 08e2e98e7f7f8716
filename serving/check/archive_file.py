"""Checks an archive on disk: can this host serve it as it asks?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from offpath.archive.mar_file import LABELS_CURE, NO_LABELS, MarFile, read_mar
from offpath.archive.model_config import DEVICE_TYPES
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.serving.check.host import has_gpu
from offpath.serving.finding import Finding, grade, lost, ok, wrong
from offpath.serving.torchserve.in_force import (
    CPU_INSTEAD,
    DEVICE,
    MODEL_SETTINGS,
    WHOLE_NUMBERS,
    is_ignored,
)


def check_archive(path: Path) -> Iterator[Finding]:
    """Yields findings about one .mar."""
    area, convert = path.name, f"offpath archive --from {path}"
    try:
        archive = read_mar(path)
    except ExpectedError as error:
        yield wrong(area, "archive", str(error), "offpath archive ...")
        return
    model = f"model {archive.model_name} {archive.model_version}"
    loss = None if archive.has_our_handler else f"{archive.handler}, {model}; not offpath's"
    yield grade(area, "handler", f"offpath's, {model}", loss, convert)
    if archive.model_config is None:
        found = "no model-config.yaml: batch size 1 unless the register API sets another"
        yield lost(area, "batch settings", found, convert)
        return
    for check in CHECKS:
        yield from check(area, archive)


def check_labels(area: str, archive: MarFile) -> Iterator[Finding]:
    """Yields a finding about an archive of ours without labels."""
    if archive.lacks_labels:
        yield lost(area, "labels", NO_LABELS, LABELS_CURE)


def _check_batches(area: str, archive: MarFile) -> Iterator[Finding]:
    config = archive.model_config or {}
    ignored = [key for key in MODEL_SETTINGS if key in config and is_ignored(config[key])]
    for key in ignored:
        yield wrong(area, key, f"{config[key]!r}: {WHOLE_NUMBERS}", f"{key}: 1")
    if not ignored:
        found = f"batch {config.get('batchSize', 1)}, delay {config.get('maxBatchDelay', 100)} ms"
        yield ok(area, "batch settings", found)


def _check_device(area: str, archive: MarFile) -> Iterator[Finding]:
    device = (archive.model_config or {}).get(DEVICE, "cpu")
    if device not in DEVICE_TYPES:
        yield wrong(area, "device", f"{device!r:.80}", f"{DEVICE}: {' or '.join(DEVICE_TYPES)}")
    elif device == "gpu" and not has_gpu():
        found = "the archive asks for a GPU, and torch finds none on this host"
        yield wrong(area, "device", found, CPU_INSTEAD)
    else:
        yield ok(area, "device", device)


def _check_workers(area: str, archive: MarFile) -> Iterator[Finding]:
    config = archive.model_config or {}
    workers, section, cores = config.get("maxWorkers"), config.get("handler"), count_cores()
    if not isinstance(workers, int):
        return
    threads = section.get("threads", 0) if isinstance(section, dict) else 0
    loss = None
    if isinstance(threads, int) and workers * max(1, threads) > cores:
        loss = f"{workers} with {max(1, threads)} threads each on {cores} cores"
    cure = f"offpath archive --workers {cores} ... (sets the threads too)"
    yield grade(area, "workers", workers, loss, cure)


def _check_handler(area: str, archive: MarFile) -> Iterator[Finding]:
    if not archive.has_our_handler:
        return
    try:
        config = HandlerConfig.from_mapping((archive.model_config or {}).get("handler"), environ={})
    except ConfigError as error:
        yield wrong(area, "handler settings", str(error), "offpath archive --set ...")
        return
    found = f"{config.image_size} px, top {config.top_k}, log {config.prediction_log.uri}"
    yield ok(area, "handler settings", found)


CHECKS = (_check_batches, _check_device, _check_workers, _check_handler, check_labels)
