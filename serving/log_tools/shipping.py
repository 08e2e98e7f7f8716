"""Draining a spool from outside the workers: shutdown hook, sidecar, cron.

Takes the segments of dead processes only; a living worker ships its own. Locks decide (see
handler/prediction_log/owner.py), so any number of these may run beside any number of workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.handler.prediction_log.delivery import Delivery
from offpath.handler.prediction_log.delivery_failures import describe_error
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.owner import (
    AdoptedFolders,
    is_owner_alive,
    list_owner_folders,
)
from offpath.handler.prediction_log.segment import SealedSegment, list_segments
from offpath.handler.prediction_log.sink_file import clear_last_error, read_sink_file
from offpath.handler.prediction_log.sinks import open_sink

AT_ONCE = 4
POLL_S = 0.1


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
) -> ShipReport:
    """Ships every segment that no living process owns; tries again until `timeout_s` is over.

    Args:
        spool_dir: The spool, with a folder for each sink.
        timeout_s: How long a failing sink is tried; one attempt is always made, and may take the
            sink's own time-out.
        progress: Called with (segments done, segments found).

    Raises:
        ExpectedError: The spool cannot be read.
    """
    deadline_s = time.monotonic() + timeout_s
    report = ShipReport()
    for sink_folder in list_sink_folders(spool_dir):
        adopted = AdoptedFolders(sink_folder)
        try:
            _ship_folder(adopted, deadline_s, report, progress)
            report.living_segments += _count_living(sink_folder, adopted.paths)
        except (OSError, ValueError) as error:
            # One sink's folder: the others' segments are delivered all the same.
            report.errors[str(sink_folder)] = f"{sink_folder}: {error}"
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
        raise WrongOption(
            f"spool {str(spool_dir)!r}: {error.strerror}; name the folder with --spool or "
            "OFFPATH_SPOOL_DIR, as the workers have it"
        ) from error
    return [path for path in entries if path.is_dir() and not path.is_symlink()]


def _count_living(sink_folder: Path, adopted: set[Path]) -> int:
    others = [path for path in list_owner_folders(sink_folder) if path not in adopted]
    return sum(len(list_segments(path)) for path in others if is_owner_alive(path))


def _ship_folder(
    adopted: AdoptedFolders,
    deadline_s: float,
    report: ShipReport,
    progress: Progress,
) -> None:
    """Adopts some owners' segments at a time and ships them, until there are no more."""
    settings: PredictionLogSettings | None = None
    while segments := adopted.adopt():
        try:
            settings = settings or _read_settings(adopted.sink_folder)
        except (OSError, ValueError):
            report.left_segments += len(segments)
            raise
        work = _ship_segments(settings, segments, deadline_s, report, progress)
        left = asyncio.run(work)
        report.left_segments += len(left)
        adopted.release_emptied({segment.path.parent for segment in left})
    if settings is not None and settings.uri not in report.errors:
        clear_last_error(adopted.sink_folder)


def _read_settings(sink_folder: Path) -> PredictionLogSettings:
    settings = read_sink_file(sink_folder)
    if settings is None:
        raise ValueError(
            "there is no sink.json, so nothing says where its segments go: open the log once "
            "with the same URI (start a worker), which writes it"
        )
    return settings


async def _ship_segments(
    settings: PredictionLogSettings,
    segments: list[SealedSegment],
    deadline_s: float,
    report: ShipReport,
    progress: Progress,
) -> list[SealedSegment]:
    """What is left of them."""
    left = list(segments)

    def delivered(segment: SealedSegment, records: int) -> None:
        segment.path.unlink()
        left.remove(segment)
        report.shipped_segments += 1
        report.shipped_records += records
        progress(len(segments) - len(left), len(segments))

    def failed(segment: SealedSegment, error: Exception) -> None:
        why = f"{settings.uri}: {describe_error(error, settings.uri)[1]}"
        report.errors[settings.uri] = why

    sink = open_sink(settings)
    delivery = Delivery(sink, AT_ONCE, settings.retry_max_s, delivered, failed)
    while left:
        delivery.start(left)
        is_late = time.monotonic() >= deadline_s
        if is_late and _is_in_vain(delivery, left):
            break
        if delivery.in_flight:
            await asyncio.wait(
                delivery.in_flight, return_when=asyncio.FIRST_COMPLETED, timeout=POLL_S
            )
        else:
            await asyncio.sleep(POLL_S)
    await delivery.close()
    if not left:
        report.errors.pop(settings.uri, None)
    return left


def _is_in_vain(delivery: Delivery, left: list[SealedSegment]) -> bool:
    """Whether every segment had its attempt, or the sink takes none."""
    is_tried = all(segment.failures for segment in left)
    return not delivery.in_flight and (is_tried or delivery.failures >= AT_ONCE)
