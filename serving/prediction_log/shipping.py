"""Ships a spool from outside the workers (for a shutdown hook, a sidecar or cron), or reads it.

Only segments of dead processes are taken; a living worker ships its own. Locks decide who ships a
segment (handler/prediction_log/owner.py), so any number of these may run beside the workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from offpath.errors import WrongOption
from offpath.handler.prediction_log.delivery import Delivery
from offpath.handler.prediction_log.delivery_failures import describe_error
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.owner import AdoptedFolders, is_owner_alive, list_owner_folders
from offpath.handler.prediction_log.segment import (
    ASIDE_SUFFIX,
    TORN_SUFFIX,
    SealedSegment,
    list_segments,
)
from offpath.handler.prediction_log.sink_file import (
    clear_last_error,
    read_last_error,
    read_sink_file,
)
from offpath.handler.prediction_log.sinks import open_sink

AT_ONCE = 4
POLL_S = 0.1


@dataclass
class ShipReport:
    """Result of one pass over a spool.

    Attributes:
        shipped_segments: Segments that the sinks have acknowledged.
        shipped_records: Records in these segments.
        left_segments: Segments that could not be shipped and are still in the spool.
        living_segments: Segments of living processes, which ship them themselves.
        errors: Why segments are left, by sink.
    """

    shipped_segments: int = 0
    shipped_records: int = 0
    left_segments: int = 0
    living_segments: int = 0
    errors: dict[str, str] = field(default_factory=dict)


Progress = Callable[[int, int], None]


def ship_spool(
    spool_dir: Path, timeout_s: float, progress: Progress = lambda done, total: None
) -> ShipReport:
    """Ships every segment that no living process owns, with retries until `timeout_s` is over.

    Args:
        timeout_s: Seconds for which a failing sink is tried again. One attempt is always made, and
            may last as long as the sink's own time-out.
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
            # The segments of other sinks are delivered all the same.
            report.errors[str(sink_folder)] = f"{sink_folder}: {error}"
        finally:
            adopted.release()
    return report


def list_sink_folders(spool_dir: Path) -> list[Path]:
    """Returns the folders of the spool's sinks.

    Raises:
        WrongOption: The spool does not exist or cannot be read.
    """
    try:
        entries = sorted(spool_dir.iterdir())
    except OSError as error:
        raise WrongOption(
            f"cannot read the spool {str(spool_dir)!r} ({error.strerror}); name the workers' "
            "spool folder with --spool or OFFPATH_SPOOL_DIR"
        ) from error
    return [path for path in entries if path.is_dir() and not path.is_symlink()]


def _count_living(sink_folder: Path, adopted: set[Path]) -> int:
    others = [path for path in list_owner_folders(sink_folder) if path not in adopted]
    return sum(len(list_segments(path)) for path in others if is_owner_alive(path))


def _ship_folder(
    adopted: AdoptedFolders, deadline_s: float, report: ShipReport, progress: Progress
) -> None:
    """Adopts segments of dead owners, some at a time, and ships them until none are left."""
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
            "it has no sink.json, which says where its segments go; start a worker once with the "
            "same log URI, which writes the file"
        )
    return settings


async def _ship_segments(
    settings: PredictionLogSettings,
    segments: list[SealedSegment],
    deadline_s: float,
    report: ShipReport,
    progress: Progress,
) -> list[SealedSegment]:
    """Ships segments and returns those that are left."""
    left = list(segments)

    def delivered(segment: SealedSegment, records: int) -> None:
        segment.path.unlink()
        left.remove(segment)
        # An empty segment of a worker that answered nothing is only removed.
        report.shipped_segments += bool(records)
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
    """Tells whether every segment had an attempt, or the sink accepts none."""
    is_tried = all(segment.failures for segment in left)
    return not delivery.in_flight and (is_tried or delivery.failures >= AT_ONCE)


@dataclass(frozen=True)
class SinkStatus:
    """One sink's part of the spool.

    Attributes:
        uri: Destination of its segments; None if the spool does not name it.
        living: Number of folders that a living process holds: its own, and those it has adopted.
        dead: Number of folders that dead processes left and nobody has adopted yet.
        segments: Number of waiting segments, including open ones.
        spool_bytes: Size of the waiting segments.
        oldest_age_s: Seconds since the last append to the oldest segment; None if none waits.
        set_aside: Number of files with torn lines, or that are not segments.
        last_error: Error of the last delivery; None if it succeeded.
    """

    uri: str | None
    living: int
    dead: int
    segments: int
    spool_bytes: int
    oldest_age_s: float | None
    set_aside: int
    last_error: str | None


def read_status(spool_dir: Path) -> list[SinkStatus]:
    """Returns the status of each sink in a spool; raises like `list_sink_folders`."""
    return [_read_sink(folder) for folder in list_sink_folders(spool_dir)]


def _read_sink(folder: Path) -> SinkStatus:
    uri, last_error = _read_notes(folder)
    owners = list_owner_folders(folder)
    alive = [is_owner_alive(path) for path in owners]
    segments = []
    for path in owners:
        segments.extend(list_segments(path))
    waiting = [segment for segment in segments if segment.size_bytes]
    ages = [time.monotonic() - segment.since_s for segment in waiting]
    return SinkStatus(
        uri=uri,
        living=sum(alive),
        dead=len(owners) - sum(alive),
        segments=len(waiting),
        spool_bytes=sum(segment.size_bytes for segment in waiting),
        oldest_age_s=round(max(ages), 1) if ages else None,
        set_aside=sum(path.suffix in (TORN_SUFFIX, ASIDE_SUFFIX) for path in folder.iterdir()),
        last_error=last_error,
    )


def _read_notes(folder: Path) -> tuple[str | None, str | None]:
    """Returns URI and last error; a note that cannot be read counts as an error."""
    uri = None
    try:
        settings = read_sink_file(folder)
        uri = settings.uri if settings else None
        error = read_last_error(folder)
    except (OSError, ValueError) as unreadable:
        return uri, str(unreadable)
    return uri, f"{error.get('time')} {error.get('message')}" if error else None
