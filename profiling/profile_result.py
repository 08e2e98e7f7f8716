"""What `offpath profile` leaves: raw samples of one or several handlers, as JSON; no statistics.

One file may hold the same kind of profile of several handlers (ours beside a baseline): they were
taken in one run, on the same photographs, and may be compared.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.result import format_json

FORMAT = "offpath-profile/1"


@dataclass(frozen=True)
class BatchSample:
    """One batch.

    Attributes:
        total_s: `handle`, from call to return.
        stages_s: stage -> seconds, in the order of the path; what they leave is `other`.
        device_s: stage -> seconds of the accelerator, by its own events; empty without one.
    """

    size: int
    total_s: float
    stages_s: dict[str, float]
    device_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionSample:
    """One function over all batches, all threads together.

    Attributes:
        bucket: file I/O, S3, decode, resize, tensor, forward, serialise, logging, other.
        own_s: without what it called; own times of all functions add up to the whole.
    """

    name: str
    file: str
    line: int
    bucket: str
    calls: int
    own_s: float
    cumulative_s: float


@dataclass(frozen=True)
class LineSample:
    """One source line of a function that line_profiler watched."""

    function: str
    file: str
    line: int
    hits: int
    time_s: float
    source: str


@dataclass
class HandlerProfile:
    """One handler's samples.

    Attributes:
        name: as the user named it.
        settings: how it was set up: model, batch size, threads.
        batches: for `stages` (also kept by the others where they have them).
        functions: for `cprofile`.
        lines: for `lines`.
        server: for `server`: queue, front end, clients, workers (see `profiling.server_profile`).
        files: what was written beside the JSON: .prof, .html, traces.
    """

    name: str
    settings: dict[str, Any]
    batches: list[BatchSample] = field(default_factory=list)
    functions: list[FunctionSample] = field(default_factory=list)
    lines: list[LineSample] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


@dataclass
class ProfileResult:
    """A run.

    Attributes:
        kind: stages, cprofile, lines, flame or server.
        command: the command line.
        started_at: RFC 3339, UTC.
        host: from `profiling.host`.
        settings: everything that was chosen: requests, batch_size, seed, clients, duration.
        workload: name, identity, mean_bytes, count.
    """

    kind: str
    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workload: dict[str, Any]
    handlers: list[HandlerProfile] = field(default_factory=list)


def save_profile(result: ProfileResult, path: Path) -> None:
    """Writes the JSON, replacing the file as a whole: an interrupted save leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(
        format_json({"format": FORMAT, **asdict(result)}), encoding="utf-8"
    )
    os.replace(partial, path)


def load_profile(path: Path) -> ProfileResult:
    """Reads a saved profile.

    Raises:
        ExpectedError: no such file, or not one of ours.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        handlers = [_read_handler(row) for row in content.pop("handlers")]
        return ProfileResult(**content, handlers=handlers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExpectedError(
            f"cannot read {str(path)!r} as a result of `offpath profile`: {error}"
        ) from error


def _read_handler(row: dict[str, Any]) -> HandlerProfile:
    batches = [BatchSample(**sample) for sample in row.pop("batches")]
    functions = [FunctionSample(**sample) for sample in row.pop("functions")]
    lines = [LineSample(**sample) for sample in row.pop("lines")]
    return HandlerProfile(**row, batches=batches, functions=functions, lines=lines)
