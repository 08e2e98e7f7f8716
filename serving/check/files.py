"""Checks files: can this host serve an archive, and what does a config.properties give away?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import read_mar
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.process.foreign_server import (
    COLLECTOR,
    DECLARED_METRIC,
    HEAP,
    METRICS_LOSS,
    find_collector_loss,
    read_java_option,
)
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import DEVICE_TYPES, KEYS, RANGES, ServingSettings
from offpath.serving.check.host import has_gpu
from offpath.serving.check.spelling import find_unread_properties, find_unread_settings
from offpath.serving.finding import Finding, grade, lost, ok, wrong
from offpath.serving.server.in_force import (
    CPU_INSTEAD,
    DEVICE,
    WHOLE_NUMBERS,
)
from offpath.serving.server.plan import note_gaps
from offpath.serving.server.properties import (
    CONF_DIR,
    DEFAULTS,
    find_config,
    read_properties,
)

AREA = "config"
# Cost of a missing or different value; the line to copy is from our file.
WANTED = {
    "metrics_mode": "no /metrics for Prometheus, and a log line per metric",
    "prefer_direct_buffer": "Java copies each batch once more",
    "decode_input_request": "a warning in the log for every bad body",
    "disable_system_metrics": "starts a Python process every minute that imports psutil and nvgpu",
}
# Cost of a limit that is no higher than TorchServe's default.
LIMITS = {
    "max_request_size": "the JPEG of a good camera gets an empty 413",
    "job_queue_size": "requests beyond this number get 503",
}
# Memory for each place in the queue: the JPEG of a good camera.
BODY_BYTES = 1_200_000
SIZE = re.compile(r"(\d+)([kmgt]?)", re.IGNORECASE)
METRICS_CURE = f"metrics_config={CONF_DIR / 'metrics.yaml'}"
LOG4J_CURE = f"-Dlog4j.configurationFile=file://{CONF_DIR / 'log4j2.xml'}"
LOCAL_ADDRESS = re.compile(r"//(127\.|localhost|\[::1\])|^unix:")


def check_archive(path: Path) -> Iterator[Finding]:
    """Yields findings about one .mar."""
    area = path.name
    try:
        archive = read_mar(path)
    except ExpectedError as error:
        yield wrong(area, "archive", str(error), "offpath archive ...")
        return
    model = f"model {archive.model_name} {archive.model_version}"
    if archive.has_our_handler:
        yield ok(area, "handler", f"offpath's, {model}")
    config = archive.model_config
    yield from note_gaps(archive, config is not None)
    if config is None:
        return
    yield from find_unread_settings(area, archive)
    settings = archive.serving
    ignored = {KEYS[name]: value for name, value in settings.ignored.items() if name in RANGES}
    for key, value in ignored.items():
        yield wrong(area, key, f"{value!r}: {WHOLE_NUMBERS}", f"{key}: 1")
    if not ignored:
        found = f"batch {settings.batch_size}, delay {settings.max_batch_delay_ms} ms"
        yield ok(area, "batch settings", found)
    yield _check_device(area, settings)
    if "max_workers" in settings.asked.keys() - settings.ignored.keys():
        yield _check_workers(area, settings.max_workers, config.get("handler"))
    if archive.has_our_handler:
        yield _check_handler(area, config)


def _check_device(area: str, settings: ServingSettings) -> Finding:
    if "device_type" in settings.ignored:
        device = settings.ignored["device_type"]
        return wrong(area, "device", f"{device!r:.80}", f"{DEVICE}: {' or '.join(DEVICE_TYPES)}")
    if settings.device_type == "gpu" and not has_gpu():
        found = "the archive asks for a GPU, and torch finds none on this host"
        return wrong(area, "device", found, CPU_INSTEAD)
    return ok(area, "device", settings.device_type or "cpu")


def _check_workers(area: str, workers: int, section: object) -> Finding:
    cores = count_cores()
    threads = section.get("threads", 0) if isinstance(section, dict) else 0
    loss = None
    if isinstance(threads, int) and workers * max(1, threads) > cores:
        loss = f"{workers} with {max(1, threads)} threads each on {cores} cores"
    cure = f"offpath archive --workers {cores} ... (sets the threads too)"
    return grade(area, "workers", workers, loss, cure)


def _check_handler(area: str, config: Mapping[str, Any]) -> Finding:
    try:
        handler = HandlerConfig.from_mapping(config.get("handler"), environ={})
    except ConfigError as error:
        return wrong(area, "handler settings", str(error), "offpath archive --set ...")
    found = f"{handler.image_size} px, top {handler.top_k}, log {handler.prediction_log.uri}"
    return ok(area, "handler settings", found)


def check_config(
    properties: Mapping[str, str], vmargs: str | None = None, area: str = AREA
) -> Iterator[Finding]:
    """Yields findings about a configuration.

    `vmargs` are the Java options of the running server; None takes those in the file.
    """
    options = (properties.get("vmargs", "") if vmargs is None else vmargs).split()
    ours = read_properties(find_config())
    yield from find_unread_properties(area, properties)
    yield from _check_java(area, properties, options, ours)
    yield from _check_metrics(area, properties)
    for key, cost in WANTED.items():
        given = properties.get(key)
        loss = None if given == ours[key] else f"{given or 'not set'}: {cost}"
        yield grade(area, key, given, loss, f"{key}={ours[key]}")
    for key, cost in LIMITS.items():
        text = properties.get(key, DEFAULTS[key])
        number = int(text) if text.isdigit() else 0
        is_low = number <= int(DEFAULTS[key]) and number < int(ours[key])
        yield grade(area, key, text, f"{text}: {cost}" if is_low else None, f"{key}={ours[key]}")
    yield from _check_queue(area, properties, options)
    yield from _check_addresses(area, properties)


def _check_java(
    area: str, properties: Mapping[str, str], options: Sequence[str], ours: Mapping[str, str]
) -> Iterator[Finding]:
    kept = [option for option in ours["vmargs"].split() if "log4j" not in option]
    cure = "vmargs=" + " ".join([*kept, LOG4J_CURE])
    collector, heap = (read_java_option(pattern, options) for pattern in (COLLECTOR, HEAP))
    yield grade(area, "collector", collector, find_collector_loss(options), cure)
    loss = None if heap else "not set; Java takes up to a quarter of the memory"
    yield grade(area, "heap", f"at most {heap}", loss, cure)
    names = " ".join(options)
    has_log4j = "log4j.configurationFile" in names
    loss = None if has_log4j else "TorchServe writes eight log lines per request"
    yield grade(area, "request log", "log4j.configurationFile is set", loss, cure)
    direct = properties.get("prefer_direct_buffer") == "true"
    if direct and "netty.allocator.maxOrder" not in names:
        found = "direct buffers in chunks of 16 MB triple the cost of a batch of megabyte bodies"
        yield lost(area, "buffers", found, cure)


def _check_metrics(area: str, properties: Mapping[str, str]) -> Iterator[Finding]:
    named = properties.get("metrics_config", "")
    # `offpath serve` looks for a relative path in our conf folder too.
    file = Path(named) if Path(named).is_file() else CONF_DIR / Path(named).name
    found, loss = named, None
    if properties.get("model_metrics_auto_detect") == "true":
        found = "found by model_metrics_auto_detect"
    elif not (file.is_file() and DECLARED_METRIC in file.read_text("utf-8")):
        loss = METRICS_LOSS.format(named or "the default metrics file")
    yield grade(area, "our metrics", found, loss, METRICS_CURE)


def _check_queue(
    area: str, properties: Mapping[str, str], options: Sequence[str]
) -> Iterator[Finding]:
    queue = properties.get("job_queue_size", DEFAULTS["job_queue_size"])
    size = SIZE.fullmatch(read_java_option(HEAP, options) or "")
    heap = int(size[1]) << 10 * " kmgt".index(size[2].lower() or " ") if size else 0
    # Behind our front door, which asks at a Unix socket, large bodies never reach Java.
    has_bodies = not properties.get("inference_address", "").startswith("unix:")
    if has_bodies and heap and queue.isdigit() and int(queue) * BODY_BYTES > heap // 2:
        found = f"{queue} bodies of 1.2 MB would fill more than half of the heap"
        cure = f"job_queue_size={heap // 2 // BODY_BYTES}, or a larger -Xmx"
        yield lost(area, "queue and heap", found, cure)


def _check_addresses(area: str, properties: Mapping[str, str]) -> Iterator[Finding]:
    has_no_tokens = properties.get("disable_token_authorization") == "true"
    open_to_all = {
        "management_address": (wrong, "without tokens: anyone who can reach it can load code"),
        "inference_address": (lost, "without tokens and TLS: put a proxy with both in front"),
    }
    for key, (severity, cost) in open_to_all.items():
        address = properties.get(key, DEFAULTS[key])
        if has_no_tokens and not LOCAL_ADDRESS.search(address):
            yield severity(area, key, f"{address} {cost}", f"{key}={DEFAULTS[key]}")
    if properties.get("enable_model_api") == "true" and not properties.get("allowed_urls"):
        found = "not set: models can be loaded from any URL (CVE-2023-43654)"
        yield wrong(area, "allowed_urls", found, "allowed_urls=offpath-model-store-only")
