"""Compares a config.properties with offpath's: what the differences cost, with the line to copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from offpath.handler.process.foreign_server import (
    DECLARED_METRIC,
    find_collector_loss,
    find_metrics_loss,
    read_java_options,
)
from offpath.serving.finding import Finding, lost, ok, wrong
from offpath.serving.torchserve.properties import DEFAULTS, read_properties
from offpath.serving.torchserve.server_settings import CONF_DIR, find_config

AREA = "config"
# TorchServe ignores these keys in config.properties; a model's settings are in its archive.
ARCHIVE_OPTIONS = {
    "batch_size": "--batch-size",
    "batchSize": "--batch-size",
    "max_batch_delay": "--max-batch-delay-ms",
    "maxBatchDelay": "--max-batch-delay-ms",
    "minWorkers": "--workers",
    "maxWorkers": "--workers",
}
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
SIZE = re.compile(r"(\d+)([kmgt]?)$", re.IGNORECASE)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
METRICS_CURE = f"metrics_config={CONF_DIR / 'metrics.yaml'}"
LOOPBACK = re.compile(r"//(127\.|localhost|\[::1\])|^unix:")


def check_config(
    properties: Mapping[str, str], vmargs: str | None = None, area: str = AREA
) -> Iterator[Finding]:
    """Yields findings about a configuration.

    Args:
        properties: the file's content.
        vmargs: Java options of the running server; None: those in the file.
        area: area of the findings.
    """
    ours = read_properties(find_config())
    yield from _check_ignored(properties, area)
    options = properties.get("vmargs", "") if vmargs is None else vmargs
    yield from _check_java(properties, options, ours, area)
    yield _check_metrics(properties, area)
    for key, cost in WANTED.items():
        value = properties.get(key)
        if value == ours[key]:
            yield ok(area, key, value)
        else:
            found = f"{value or 'not set'}: {cost}"
            yield lost(area, key, found, f"{key}={ours[key]}")
    yield from _check_limits(properties, options, ours, area)
    yield from _check_doors(properties, area)


def read_size(text: str | None) -> int | None:
    """Parses a size such as `2g` into bytes; None if the text is not a size."""
    match = SIZE.match(text or "")
    return int(match.group(1)) * UNITS[match.group(2).lower()] if match else None


def _check_ignored(properties: Mapping[str, str], area: str) -> Iterator[Finding]:
    for key, option in ARCHIVE_OPTIONS.items():
        if key in properties:
            value = properties[key]
            found = f"{value}; TorchServe ignores this key in config.properties"
            yield wrong(area, key, found, f"offpath archive {option} {value} ...")


def _check_java(
    properties: Mapping[str, str], options: str, ours: Mapping[str, str], area: str
) -> Iterator[Finding]:
    java = read_java_options(options.split())
    shared = [o for o in ours["vmargs"].split() if "log4j" not in o]
    cure = "vmargs=" + " ".join([*shared, _log4j_option()])
    loss = find_collector_loss(java)
    if loss is not None:
        yield lost(area, loss.subject, loss.found, cure)
    else:
        yield ok(area, "collector", java.collector)
    if java.heap is None:
        yield lost(area, "heap", "not set; Java takes up to a quarter of the memory", cure)
    else:
        yield ok(area, "heap", f"at most {java.heap}")
    if "log4j.configurationFile" in options:
        yield ok(area, "request log", "log4j.configurationFile is set")
    else:
        yield lost(area, "request log", "TorchServe writes eight log lines per request", cure)
    direct = properties.get("prefer_direct_buffer") == "true"
    if direct and "netty.allocator.maxOrder" not in options:
        found = "direct buffers in chunks of 16 MB triple the cost of a batch of megabyte bodies"
        yield lost(area, "buffers", found, cure)


def _log4j_option() -> str:
    return f"-Dlog4j.configurationFile=file://{CONF_DIR / 'log4j2.xml'}"


def _check_metrics(properties: Mapping[str, str], area: str) -> Finding:
    named = properties.get("metrics_config", "")
    if properties.get("model_metrics_auto_detect") == "true":
        return ok(area, "our metrics", "found by model_metrics_auto_detect")
    # `offpath serve` looks for a relative path in our conf folder too.
    file = Path(named) if Path(named).is_file() else CONF_DIR / Path(named).name
    is_declared = file.is_file() and DECLARED_METRIC in file.read_text("utf-8")
    loss = find_metrics_loss(is_declared, named or "the default metrics file")
    if loss is None:
        return ok(area, "our metrics", named)
    return lost(area, loss.subject, loss.found, METRICS_CURE)


def _check_limits(
    properties: Mapping[str, str], options: str, ours: Mapping[str, str], area: str
) -> Iterator[Finding]:
    for key, cost in LIMITS.items():
        text = properties.get(key, DEFAULTS[key])
        value = int(text) if text.isdigit() else 0
        if value <= int(DEFAULTS[key]) and value < int(ours[key]):
            yield lost(area, key, f"{text}: {cost}", f"{key}={ours[key]}")
        else:
            yield ok(area, key, text)
    queue = properties.get("job_queue_size", DEFAULTS["job_queue_size"])
    heap = read_size(read_java_options(options.split()).heap)
    if heap and queue.isdigit() and int(queue) * BODY_BYTES > heap // 2:
        found = f"{queue} bodies of 1.2 MB would fill more than half of the heap"
        cure = f"job_queue_size={heap // 2 // BODY_BYTES}, or a larger -Xmx"
        yield lost(area, "queue and heap", found, cure)


def _check_doors(properties: Mapping[str, str], area: str) -> Iterator[Finding]:
    has_tokens = properties.get("disable_token_authorization") != "true"
    management = properties.get("management_address", DEFAULTS["management_address"])
    if not LOOPBACK.search(management) and not has_tokens:
        cure = f"management_address={DEFAULTS['management_address']}"
        found = f"{management} without tokens: anyone who can reach it can load code"
        yield wrong(area, "management_address", found, cure)
    inference = properties.get("inference_address", DEFAULTS["inference_address"])
    if not LOOPBACK.search(inference) and not has_tokens:
        found = f"{inference} without tokens and TLS: put a proxy with both in front"
        cure = f"inference_address={DEFAULTS['inference_address']}"
        yield lost(area, "inference_address", found, cure)
    if properties.get("enable_model_api") == "true" and not properties.get("allowed_urls"):
        found = "not set: models can be loaded from any URL (CVE-2023-43654)"
        yield wrong(area, "allowed_urls", found, "allowed_urls=offpath-model-store-only")
