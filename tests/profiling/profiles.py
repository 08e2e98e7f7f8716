"""Made-up profiles with known figures."""

from __future__ import annotations

from typing import Any

from offpath.profiling.in_process.profile_result import (
    BatchSample,
    FunctionSample,
    HandlerProfile,
    LineSample,
    ProfileResult,
)


def make_batch(
    decode_ms: float, inference_ms: float, other_ms: float = 1, size: int = 8
) -> BatchSample:
    stages = {"decode": decode_ms / 1e3, "inference": inference_ms / 1e3}
    total_s = (decode_ms + inference_ms + other_ms) / 1e3
    return BatchSample(size, total_s, stages)


def make_handler(
    name: str = "offpath", factor: float = 1, **changes: Any
) -> HandlerProfile:
    values: dict[str, Any] = {
        "name": name,
        "settings": {"model": "near-free", "threads": 1},
        "batches": [make_batch(factor * (n % 10 + 8), 5 * factor) for n in range(100)],
    }
    return HandlerProfile(**(values | changes))


def make_function(
    name: str, bucket: str, own_s: float, **changes: Any
) -> FunctionSample:
    values: dict[str, Any] = {
        "name": name,
        "file": "/some/folder/handler.py",
        "line": 12,
        "bucket": bucket,
        "calls": 100,
        "own_s": own_s,
        "cumulative_s": 2 * own_s,
    }
    return FunctionSample(**(values | changes))


def make_line(line: int, time_s: float, source: str, **changes: Any) -> LineSample:
    values: dict[str, Any] = {
        "function": "preprocess",
        "file": "/some/folder/handler.py",
        "line": line,
        "hits": 100,
        "time_s": time_s,
        "source": source,
    }
    return LineSample(**(values | changes))


def make_server(name: str = "offpath", queue_ms: float = 12.0) -> HandlerProfile:
    account = [
        {"part": "client, socket and front end", "where": "client", "ms": 3.0},
        {"part": "queue", "where": "queue", "ms": queue_ms},
        {"part": "decode", "where": "handler", "ms": 5.0},
        {"part": "not accounted for", "where": "unaccounted", "ms": -0.5},
    ]
    server = {
        "client": {
            "clients": 32,
            "replies": 4000,
            "failures": 0,
            "elapsed_s": 10.0,
            "latencies_ms": [float(ms) for ms in range(10, 60)],
        },
        "account": account,
        "mean_ms": 7.5 + queue_ms,
        "mean_batch_size": 6.25,
        "in_force": {"batchSize": 8},
        "doubts": ["only 30 batches were counted"],
    }
    return HandlerProfile(name, {}, server=server)


def make_profile(*handlers: HandlerProfile, **changes: Any) -> ProfileResult:
    values: dict[str, Any] = {
        "kind": "stages",
        "command": "offpath profile stages --handler offpath --handler naive",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        "settings": {"requests": 800, "batch_size": 8, "seed": 0},
        "workload": {
            "name": "photos",
            "identity": "ab",
            "mean_bytes": 55000,
            "count": 32,
        },
        "handlers": list(handlers or (make_handler(),)),
    }
    return ProfileResult(**(values | changes))
