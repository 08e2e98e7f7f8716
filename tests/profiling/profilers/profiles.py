"""Made-up profiles with known figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.profilers.collector import (
    BatchSample,
    FunctionSample,
    LineSample,
)
from offpath.profiling.profilers.profile_report import list_batches

IMAGES = {"identity": "ab", "mean_bytes": 55000, "count": 32}
HOST = {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}}
SETTINGS = {"requests": 800, "batch_size": 8, "seed": 0}


def make_run(kind: str = "stages", **changes: Any) -> Run:
    values: dict[str, Any] = {
        "experiment": f"profile-{kind}",
        "command": "offpath profile stages --handler offpath --handler naive",
        "settings": SETTINGS,
        "workloads": {"photos": IMAGES},
        "started_at": "2026-01-01T00:00:00+00:00",
        "host": HOST,
    }
    return Run(**(values | changes))


def make_batch(
    decode_ms: float, inference_ms: float, other_ms: float = 1, size: int = 8
) -> BatchSample:
    stages = {"decode": decode_ms / 1e3, "inference": inference_ms / 1e3}
    total_s = (decode_ms + inference_ms + other_ms) / 1e3
    return BatchSample(size, total_s, stages)


def make_batches(factor: float = 1) -> list[BatchSample]:
    """Makes batches: means of 12.5 ms and 5 ms times `factor`, 1 ms that no stage covers."""
    return [make_batch(factor * (n % 10 + 8), 5 * factor) for n in range(100)]


def add_handler(
    run: Run,
    name: str = "offpath",
    batches: Sequence[BatchSample] | None = None,
    functions: Sequence[FunctionSample] = (),
    lines: Sequence[LineSample] = (),
    size: int = 8,
) -> Run:
    """Adds a handler with two rounds."""
    batches = make_batches() if batches is None else batches
    run.variants[name] = {"model": "near-free", "threads": 1, "batch_size": size}
    cell, half = Cell("photos", 0, size), len(batches) // 2
    for round_, share in enumerate((batches[:half], batches[half:])):
        if share:
            run.add(round_, name, cell, list_batches(share))
    for kind, samples in (("functions", functions), ("lines", lines)):
        if samples:
            run.details.setdefault(kind, {})[name] = [asdict(s) for s in samples]
    return run


def make_function(name: str, kind: str, own_s: float, **changes: Any) -> FunctionSample:
    values: dict[str, Any] = {
        "name": name,
        "file": "/some/folder/handler.py",
        "line": 12,
        "kind": kind,
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


def make_server() -> Run:
    """Makes a server's account of 19.5 ms."""
    run = make_run("server", variants={"offpath": {"model": "near-free"}})
    account = {
        "client, socket and front end": 3.0,
        "queue": 12.0,
        "decode": 5.0,
        "not accounted for": -0.5,
    }
    figures = {
        "elapsed_s": 10.0,
        "replies_200": 4000,
        "latency_ms": [18.5, 20.5] * 200,
        "mean_batch_size": 6.25,
        **{f"account_ms.{part}": ms for part, ms in account.items()},
    }
    run.add(0, "offpath", Cell("photos", 32), figures)
    run.warnings = ["only 30 batches were counted"]
    return run
