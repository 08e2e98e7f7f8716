"""A config.properties of the user's own, beside ours: what is given away, with our line to copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from offpath.handler.process.foreign_server import DECLARED_METRIC, read_java_options
from offpath.serving.check.finding import Finding, lost, ok, wrong
from offpath.serving.torchserve.properties import read_properties
from offpath.serving.torchserve.server_settings import CONF_DIR, find_config

AREA = "config"
# TorchServe ignores them here: a model's settings are in its archive.
ARCHIVE_OPTIONS = {
    "batch_size": "--batch-size",
    "batchSize": "--batch-size",
    "max_batch_delay": "--max-batch-delay-ms",
    "maxBatchDelay": "--max-batch-delay-ms",
    "minWorkers": "--workers",
    "maxWorkers": "--workers",
}
# What its absence, or another value, costs; the line to copy is ours.
WANTED = {
    "metrics_mode": "no /metrics for Prometheus, and a log line for each metric",
    "prefer_direct_buffer": "each batch is copied once more in Java",
    "decode_input_request": "a warning in the log for each bad body",
    "disable_system_metrics": "a Python process every minute that imports psutil and nvgpu",
}
LIMITS = {
    "max_request_size": (6_553_500, "a good camera's JPEG gets an empty 413"),
    "job_queue_size": (100, "more than that wait: 503"),
}
# A body of 1.2 MB for each place in the queue.
BODY_BYTES = 1_200_000
SIZE = re.compile(r"(\d+)([kmgt]?)$", re.IGNORECASE)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LOOPBACK = re.compile(r"//(127\.|localhost|\[::1\])|^unix:")


def check_config(
    properties: Mapping[str, str], vmargs: str | None = None, area: str = AREA
) -> Iterator[Finding]:
    """Findings about a configuration.

    Args:
        properties: the file's content.
        vmargs: Java's options in force where a server runs; else those of the file count.
        area: where it is from.
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
    """`2g` -> bytes; None for what is no size."""
    match = SIZE.match(text or "")
    return int(match.group(1)) * UNITS[match.group(2).lower()] if match else None


def _check_ignored(properties: Mapping[str, str], area: str) -> Iterator[Finding]:
    for key, option in ARCHIVE_OPTIONS.items():
        if key in properties:
            value = properties[key]
            found = f"{value}: TorchServe ignores it in this file"
            yield wrong(area, key, found, f"offpath archive {option} {value} ...")


def _check_java(
    properties: Mapping[str, str], options: str, ours: Mapping[str, str], area: str
) -> Iterator[Finding]:
    java = read_java_options(options.split())
    shared = [o for o in ours["vmargs"].split() if "log4j" not in o]
    cure = "vmargs=" + " ".join([*shared, _log4j_option()])
    if java.collector in (None, "G1") and "G1HeapRegionSize" not in options:
        found = f"{java.collector or 'Java chooses, G1'}: four times the CPU with megabyte bodies"
        yield lost(area, "collector", found, cure)
    else:
        yield ok(area, "collector", java.collector)
    if java.heap is None:
        yield lost(area, "heap", "Java chooses, a quarter of the memory", cure)
    else:
        yield ok(area, "heap", f"at most {java.heap}")
    if "log4j.configurationFile" in options:
        yield ok(area, "request log", "log4j's own file")
    else:
        yield lost(area, "request log", "eight lines for each request", cure)
    direct = properties.get("prefer_direct_buffer") == "true"
    if direct and "netty.allocator.maxOrder" not in options:
        found = "direct buffers in chunks of 16 MB: a batch of megabyte bodies costs three times"
        yield lost(area, "buffers", found, cure)


def _log4j_option() -> str:
    return f"-Dlog4j.configurationFile=file://{CONF_DIR / 'log4j2.xml'}"


def _check_metrics(properties: Mapping[str, str], area: str) -> Finding:
    named = properties.get("metrics_config", "")
    if properties.get("model_metrics_auto_detect") == "true":
        return ok(area, "our metrics", "found by model_metrics_auto_detect")
    # A relative one is found from the server's folder, or by `offpath serve` beside ours.
    file = Path(named) if Path(named).is_file() else CONF_DIR / Path(named).name
    if named and file.is_file() and DECLARED_METRIC in file.read_text("utf-8"):
        return ok(area, "our metrics", named)
    cure = f"metrics_config={CONF_DIR / 'metrics.yaml'}"
    return lost(
        area, "our metrics", f"{named or 'metrics_config is not set'}: dropped", cure
    )


def _check_limits(
    properties: Mapping[str, str], options: str, ours: Mapping[str, str], area: str
) -> Iterator[Finding]:
    for key, (default, cost) in LIMITS.items():
        text = properties.get(key, str(default))
        value = int(text) if text.isdigit() else 0
        if value <= default and value < int(ours[key]):
            yield lost(area, key, f"{text}: {cost}", f"{key}={ours[key]}")
        else:
            yield ok(area, key, text)
    queue = properties.get("job_queue_size", str(LIMITS["job_queue_size"][0]))
    heap = read_size(read_java_options(options.split()).heap)
    if heap and queue.isdigit() and int(queue) * BODY_BYTES > heap // 2:
        found = f"{queue} bodies of 1.2 MB are more than half of the heap"
        cure = f"job_queue_size={heap // 2 // BODY_BYTES}, or a larger -Xmx"
        yield lost(area, "queue and heap", found, cure)


def _check_doors(properties: Mapping[str, str], area: str) -> Iterator[Finding]:
    has_tokens = properties.get("disable_token_authorization") != "true"
    management = properties.get("management_address", "http://127.0.0.1:8081")
    if not LOOPBACK.search(management) and not has_tokens:
        cure = "management_address=http://127.0.0.1:8081"
        found = f"{management}: whoever reaches it loads code"
        yield wrong(area, "management_address", found, cure)
    inference = properties.get("inference_address", "http://127.0.0.1:8080")
    if not LOOPBACK.search(inference) and not has_tokens:
        found = f"{inference}: no tokens and no TLS; a proxy must have both"
        cure = "disable_token_authorization=false"
        yield lost(area, "inference_address", found, cure)
    if properties.get("enable_model_api") == "true" and not properties.get(
        "allowed_urls"
    ):
        found = "models are loaded from any URL (CVE-2023-43654)"
        yield wrong(
            area, "allowed_urls", found, "allowed_urls=offpath-model-store-only"
        )
