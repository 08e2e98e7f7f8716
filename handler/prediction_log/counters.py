"""What the log tells about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogCounters:
    """Counts since this process opened the log, and the spool's present state.

    Attributes:
        appended: Records handed to the kernel.
        shipped: Records acknowledged by the sink, adopted ones included.
        dropped: Records given up: spool full, not writable, or encoding failed.
        retries: Deliveries that failed and are tried again.
        spool_bytes: Bytes waiting for this sink, all workers together.
        oldest_unshipped_age_s: Age of the oldest record this process still has to ship.
        last_success_unix_s: Time of the last acknowledged delivery, 0 before the first.
    """

    appended: int = 0
    shipped: int = 0
    dropped: int = 0
    retries: int = 0
    spool_bytes: int = 0
    oldest_unshipped_age_s: float = 0.0
    last_success_unix_s: float = 0.0
