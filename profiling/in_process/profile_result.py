"""What `offpath profile` leaves: raw samples of one or several handlers, as JSON; no statistics.

One file may hold the same kind of profile of several handlers (ours beside a baseline): they were
taken in one run, on the same photographs, and may be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.profiling.core.saved import Saved


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


PROFILE = Saved("offpath-profile/1", ProfileResult, "profile")
