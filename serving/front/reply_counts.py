"""Counts the front door's replies by status and error type, and their time, for /metrics.

Copies of requests for a shadow are counted apart, and the replies of canaries once more by version.

nginx collects a short line per reply in memory and writes the lines to a file once per second
(nginx.conf). No reply waits for the counting. A killed nginx worker loses its last second.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from offpath.handler.error_kinds import BUSY, BUSY_429, OF_DOOR
from offpath.handler.latency import REQUEST_BUCKETS, Histograms, name_class
from offpath.serving.front.nginx_config import DOOR_METRICS, REPLIES
from offpath.serving.front.splits import Split
from offpath.serving.server.worker_counts import LABELS

MAX_BYTES = 4 << 20
# Seconds, status, error type and MODEL/VERSION of a canary, or the status of a copy, as the formats
# `replies` and `copies` of nginx.conf write them.
LINE = re.compile(
    r"([0-9]+\.[0-9]{3}) ([0-9]{3}) ([A-Za-z-]*) ([\w.-]+/[\w.-]+)?|copy ([0-9]{3}) -", re.ASCII
)
# Statuses of copies to a shadow: answered, left out, given up.
COPIES = ("200", "502", "504")
# A full queue or memory, of the door or a worker: the canary was not asked.
FULL = BUSY.type
# Statuses that a canary has a number of from the beginning.
OF_CANARIES = ("200", "500", "503")
# A canary only fails if it has failed at least so often, over so many seconds, without a 200.
FAILURES = 10
FAILING_S = 5.0


class ReplyCounts:
    """The number of a door's replies since its start.

    Args:
        run: the door's folder.
    """

    def __init__(self, run: Path) -> None:
        self._log, self._page = run / REPLIES, run / DOOR_METRICS
        self._log.touch()
        self._file = open(self._log, "rb")
        self._rest = b""
        # Zeros too, because Prometheus sees no increase in a counter that appears with its event.
        self._counts = Counter({f"{kind.status} {kind.type}": 0 for kind in (*OF_DOOR, BUSY_429)})
        self._copies = Counter(dict.fromkeys(COPIES, 0))
        # By MODEL/VERSION and status.
        self._of_canaries: Counter[tuple[str, str]] = Counter()
        # By MODEL/VERSION: time of the first and the last failure since a 200, and how many.
        self._failing: dict[str, tuple[float, float, int]] = {}
        self._times = Histograms()
        for status in (200, 400, 499, 500):
            self._times.add(name_class(status), 0.0, 0)

    def count(
        self,
        is_ready: bool,
        workers: Sequence[str] = (),
        canaries: Iterable[Split] = (),
    ) -> bool:
        """Counts the new replies and writes the page.

        Args:
            is_ready: what /ping says.
            workers: lines on the server's workers.
            canaries: the canaries, suspended ones too.

        Returns:
            True if nginx must open another log, because this one was large.
        """
        whole, _, self._rest = (self._rest + self._read_new()).rpartition(b"\n")
        new: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        for line, count in Counter(whole.decode("ascii", "replace").splitlines()).items():
            match = LINE.fullmatch(line)
            if match is None:
                # nginx could write a part of its lines only, because the disk was full.
                continue
            seconds, status, kind, canary, copied = match.groups()
            if copied:
                self._copies[copied] += count
                continue
            self._counts[f"{status} {kind}"] += count
            self._times.add(name_class(int(status)), float(seconds), count)
            if canary:
                new[canary][status, kind] += count
        self._note_failures(new)
        self._write_page(is_ready, workers, canaries)
        return not self._log.exists()

    def only_fails(self, canary: Split) -> bool:
        """Tells whether a canary has failed all its requests for some seconds."""
        first, last, count = self._failing.get(f"{canary.model}/{canary.version}", (0.0, 0.0, 0))
        return count >= FAILURES and last - first >= FAILING_S

    def forgive(self) -> None:
        self._failing.clear()

    def _note_failures(self, new: Mapping[str, Counter[tuple[str, str]]]) -> None:
        """Adds new replies of canaries, by MODEL/VERSION, and by status and error type."""
        now = time.monotonic()
        for canary, statuses in new.items():
            failed = answered = 0
            for (status, kind), count in statuses.items():
                self._of_canaries[canary, status] += count
                answered += count * (status == "200")
                if kind == FULL:
                    continue
                # Other statuses are the client's fault and say nothing. So is a 504 without the
                # door's error type: a client's header has set its deadline.
                failed += count * (status >= "500" and (status, kind) != ("504", ""))
            if answered:
                self._failing.pop(canary, None)
            elif failed:
                first, _, before = self._failing.get(canary, (now, now, 0))
                self._failing[canary] = first, now, before + failed

    def _write_page(
        self,
        is_ready: bool,
        workers: Sequence[str],
        canaries: Iterable[Split],
    ) -> None:
        page = ["# TYPE offpath_door_ready gauge", f"offpath_door_ready {is_ready:d}"]
        page += workers
        page.append("# TYPE offpath_door_responses_total counter")
        for reply, count in sorted(self._counts.items()):
            status, _, kind = reply.partition(" ")
            labels = f'status="{status}",type="{kind}"'
            page.append(f"offpath_door_responses_total{{{labels}}} {count}")
        page.append("# TYPE offpath_door_copies_total counter")
        for status, count in sorted(self._copies.items()):
            page.append(f'offpath_door_copies_total{{status="{status}"}} {count}')
        page.append("# TYPE offpath_door_canary_suspended gauge")
        for one in canaries:
            labels = LABELS.format(one.model, one.version)
            page.append(f"offpath_door_canary_suspended{{{labels}}} {bool(one.suspended):d}")
            self._of_canaries.update({(f"{one.model}/{one.version}", s): 0 for s in OF_CANARIES})
        page.append("# TYPE offpath_door_canary_responses_total counter")
        for (canary, status), count in sorted(self._of_canaries.items()):
            labels = LABELS.format(*canary.split("/")) + f',status="{status}"'
            page.append(f"offpath_door_canary_responses_total{{{labels}}} {count}")
        page.append(f"# TYPE {REQUEST_BUCKETS} counter")
        for key, le, count in self._times.read():
            page.append(f'{REQUEST_BUCKETS}{{status="{key}",le="{le}"}} {count}')
        new = self._page.with_suffix(".new")
        # On a full disk the old page stays, and the next count tries again.
        with contextlib.suppress(OSError):
            new.write_text("\n".join([*page, ""]), encoding="ascii")
            new.replace(self._page)

    def close(self) -> None:
        self._file.close()

    def _read_new(self) -> bytes:
        new = self._file.read()
        if not os.fstat(self._file.fileno()).st_nlink and self._log.exists():
            # All of nginx writes to the next log by now, and this one was read to its end.
            with contextlib.suppress(OSError):  # no descriptor is left: the next count tries again
                following = open(self._log, "rb")
                self._file.close()
                self._file = following
                new += self._file.read()
        elif self._file.tell() > MAX_BYTES:
            self._log.unlink(missing_ok=True)
        return new
