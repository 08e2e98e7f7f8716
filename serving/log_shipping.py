"""Draining a spool from outside the workers: shutdown hook, sidecar, cron.

Takes the segments of dead processes only; a living worker ships its own. Locks decide (see
handler/prediction_log/owner.py), so any number of these may run beside any number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.handler.prediction_log.owner import (
    AdoptedFolders,
    is_owner_alive,
    list_owner_folders,
)
from offpath.handler.prediction_log.packing import pack_segment
from offpath.handler.prediction_log.segment import SealedSegment, list_segments
from offpath.handler.prediction_log.settings import PredictionLogSettings
from offpath.handler.prediction_log.sink_file import clear_last_error, read_sink_file
from offpath.handler.prediction_log.trouble import pause_s
from offpath.serving.log_store import LogStore, explain, open_store

UPLOADS_AT_ONCE = 4


@dataclass
class ShipReport:
    """What one pass over a spool did.

    Attributes:
        shipped_segments, shipped_records: Acknowledged by the sinks.
        left_segments: Could not be shipped; they are still in the spool.
        living_segments: Belong to processes that live and ship them themselves.
        errors: Why segments are left, by sink.
    """

    shipped_segments: int = 0
    shipped_records: int = 0
    left_segments: int = 0
    living_segments: int = 0
    errors: dict[str, str] = field(default_factory=dict)


Progress = Callable[[int, int], None]


def ship_spool(
    spool_dir: Path,
    timeout_s: float,
    progress: Progress = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> ShipReport:
    """Ships every segment that no living process owns; tries again until `timeout_s` is over.

    Args:
        spool_dir: The spool, with a folder for each sink.
        timeout_s: How long a failing sink is tried; one attempt is always made.
        progress: Called with (segments done, segments found).
        sleep: Between attempts.

    Raises:
        ExpectedError: The spool cannot be read.
    """
    deadline_s = time.monotonic() + timeout_s
    report = ShipReport()
    for sink_folder in list_sink_folders(spool_dir):
        adopted = AdoptedFolders(sink_folder)
        try:
            segments = adopted.adopt()
            report.living_segments += _count_living(sink_folder, adopted.paths)
            if segments:
                _ship_sink(sink_folder, segments, deadline_s, report, progress, sleep)
        finally:
            adopted.release()
    return report


def list_sink_folders(spool_dir: Path) -> list[Path]:
    """The folders of the spool's sinks.

    Raises:
        ExpectedError: There is no such folder, or it may not be read.
    """
    try:
        entries = sorted(spool_dir.iterdir())
    except OSError as error:
        raise ExpectedError(
            f"spool {str(spool_dir)!r}: {error.strerror}; name the folder with --spool or "
            "OFFPATH_SPOOL_DIR, as the workers have it"
        ) from error
    return [path for path in entries if path.is_dir()]


def _count_living(sink_folder: Path, adopted: set[Path]) -> int:
    others = [path for path in list_owner_folders(sink_folder) if path not in adopted]
    return sum(len(list_segments(path)) for path in others if is_owner_alive(path))


def _ship_sink(
    sink_folder: Path,
    segments: list[SealedSegment],
    deadline_s: float,
    report: ShipReport,
    progress: Progress,
    sleep: Callable[[float], None],
) -> None:
    try:
        settings = _read_settings(sink_folder)
    except ExpectedError as error:
        report.left_segments += len(segments)
        report.errors[str(sink_folder)] = str(error)
        return
    left = segments
    failures = 0
    while True:
        try:
            store = open_store(settings)
            left, trouble = _ship_once(store, left, len(segments), report, progress)
        except ExpectedError as error:
            trouble = error
        if trouble is None:
            clear_last_error(sink_folder)
            return
        failures += 1
        wait_s = pause_s(failures, settings.retry_max_s)
        if time.monotonic() + wait_s > deadline_s:
            break
        sleep(wait_s)
    report.left_segments += len(left)
    report.errors[settings.uri] = str(trouble)


def _read_settings(sink_folder: Path) -> PredictionLogSettings:
    try:
        settings = read_sink_file(sink_folder)
    except ValueError as error:
        raise ExpectedError(f"{sink_folder}: {error}") from error
    if settings is None:
        raise ExpectedError(
            f"{sink_folder} has no sink.json, so nothing says where its segments go: open the "
            "log once with the same URI (start a worker), which writes it"
        )
    return settings


def _ship_once(
    store: LogStore,
    segments: list[SealedSegment],
    total: int,
    report: ShipReport,
    progress: Progress,
) -> tuple[list[SealedSegment], Exception | None]:
    """One attempt at each segment until one fails; (what is left, why)."""
    waiting = list(segments)
    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        while waiting:
            some = waiting[:UPLOADS_AT_ONCE]
            outcomes = list(pool.map(lambda one: _ship_segment(store, one), some))
            for segment, outcome in zip(some, outcomes):
                if isinstance(outcome, int):
                    waiting.remove(segment)
                    report.shipped_segments += 1
                    report.shipped_records += outcome
            progress(total - len(waiting), total)
            errors = [one for one in outcomes if isinstance(one, Exception)]
            if errors:
                return waiting, errors[0]
    return [], None


def _ship_segment(store: LogStore, segment: SealedSegment) -> int | Exception:
    """Records shipped, or what the user can put right; a bug is raised."""
    try:
        body, records = pack_segment(segment)
        if body:
            store.put(segment.name.key, body, segment.name.compression)
        segment.path.unlink()
    except Exception as error:
        explained = explain(error, store.uri)
        if explained is error and not isinstance(error, ExpectedError):
            raise
        return explained
    return records
