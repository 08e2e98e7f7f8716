"""What a killed process leaves behind: complete lines, and perhaps one torn line at the end.

The newline is the commit mark: a line without it was never handed over completely, so its request
was never answered. Lines that are no records (a power cut may leave zeros) are set aside as well.
"""

from __future__ import annotations

import logging

from offpath.handler.prediction_log.naming import SPOOL_SUFFIX, TORN_SUFFIX
from offpath.handler.prediction_log.segment import SealedSegment

LOGGER = logging.getLogger(__name__)


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """(complete lines, everything else) of a segment's bytes."""
    end = data.rfind(b"\n") + 1
    lines, torn = data[:end], data[end:]
    good: list[bytes] = []
    bad: list[bytes] = []
    for line in lines.splitlines(keepends=True):
        is_record = line.startswith(b"{") and line.endswith(b"}\n") and 0 not in line
        (good if is_record else bad).append(line)
    if not bad:
        return lines, torn
    return b"".join(good), b"".join(bad) + torn


def read_segment(segment: SealedSegment) -> bytes:
    """The lines to ship; what an adopted segment holds beside them is copied to a .torn file.

    The segment itself stays as it is until it is delivered, so a crash in here changes nothing.
    """
    data = segment.path.read_bytes()
    if not segment.is_adopted:
        return data
    lines, torn = split_torn(data)
    if torn:
        _set_aside(segment, torn)
    return lines


def _set_aside(segment: SealedSegment, torn: bytes) -> None:
    base = segment.path.name.removesuffix(SPOOL_SUFFIX)
    sink_folder = segment.path.parent.parent
    path = sink_folder / f"{segment.name.owner}-{base}{TORN_SUFFIX}"
    try:
        path.write_bytes(torn)
    except OSError as error:
        # On a full disk the delivery must go on all the same: it is what makes room.
        LOGGER.warning("could not set aside %d torn bytes: %s", len(torn), error)
