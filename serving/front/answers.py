"""Counts the front door's answers by status and error type, and their time, for /metrics.

Copies of requests for a shadow are counted apart.

nginx collects a short line per answer in memory and writes the lines to a file once per second
(nginx.conf). No answer waits for the counting. A killed nginx worker loses its last second.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from offpath.handler.latency import REQUEST_BUCKETS, Histograms, name_class
from offpath.serving.front.nginx_config import ANSWERS, DOOR_METRICS, ERRORS

MOST_BYTES = 4 << 20
# Seconds, status and error type, as the formats `answers` and `copies` of nginx.conf write them.
LINE = re.compile(r"([0-9]+\.[0-9]{3}|copy) [0-9]{3} \S*")
# Statuses of copies to a shadow: answered, left out, given up.
COPIES = ("200", "502", "504")


class Answers:
    """The number of a door's answers since its start.

    Args:
        run: the door's folder.
    """

    def __init__(self, run: Path) -> None:
        self._log, self._page = run / ANSWERS, run / DOOR_METRICS
        self._log.touch()
        self._file = open(self._log, "rb")
        self._rest = b""
        # Zeros too, because Prometheus sees no increase in a counter that appears with its event.
        self._counts = Counter({f"{s} {kind}": 0 for s, (kind, _) in ERRORS.items()})
        self._copies = Counter(dict.fromkeys(COPIES, 0))
        self._times = Histograms()
        for status in (200, 400, 499, 500):
            self._times.add(name_class(status), 0.0, 0)

    def count(
        self, is_ready: bool, workers: Mapping[tuple[str, str], tuple[int, int]] | None = None
    ) -> bool:
        """Counts the new answers and writes the page.

        Args:
            is_ready: what /ping says.
            workers: READY and wanted workers, by model and version.

        Returns:
            True if nginx must open another log, because this one was large.
        """
        whole, _, self._rest = (self._rest + self._read_new()).rpartition(b"\n")
        for line, count in Counter(whole.decode("ascii", "replace").splitlines()).items():
            if LINE.fullmatch(line) is None:
                # nginx could write a part of its lines only, because the disk was full.
                continue
            seconds, _, answer = line.partition(" ")
            if seconds == "copy":
                self._copies[answer[:3]] += count
                continue
            self._counts[answer] += count
            self._times.add(name_class(int(answer[:3])), float(seconds), count)
        page = ["# TYPE offpath_door_ready gauge", f"offpath_door_ready {is_ready:d}"]
        for number, name in enumerate(("ready", "wanted")):
            for (model, version), counts in (workers or {}).items():
                labels = f'model="{model}",version="{version}"'
                page.append(f"offpath_workers_{name}{{{labels}}} {counts[number]}")
        page.append("# TYPE offpath_door_responses_total counter")
        for answer, count in sorted(self._counts.items()):
            status, _, kind = answer.partition(" ")
            labels = f'status="{status}",type="{kind}"'
            page.append(f"offpath_door_responses_total{{{labels}}} {count}")
        page.append("# TYPE offpath_door_copies_total counter")
        for status, count in sorted(self._copies.items()):
            page.append(f'offpath_door_copies_total{{status="{status}"}} {count}')
        page.append(f"# TYPE {REQUEST_BUCKETS} counter")
        for key, le, count in self._times.read():
            page.append(f'{REQUEST_BUCKETS}{{status="{key}",le="{le}"}} {count}')
        new = self._page.with_suffix(".new")
        # On a full disk the old page stays, and the next count tries again.
        with contextlib.suppress(OSError):
            new.write_text("\n".join([*page, ""]), encoding="ascii")
            new.replace(self._page)
        return not self._log.exists()

    def close(self) -> None:
        """Closes the log."""
        self._file.close()

    def _read_new(self) -> bytes:
        new = self._file.read()
        if not os.fstat(self._file.fileno()).st_nlink and self._log.exists():
            # All of nginx writes to the next log by now, and this one was read to its end.
            self._file.close()
            self._file = open(self._log, "rb")
            new += self._file.read()
        elif self._file.tell() > MOST_BYTES:
            self._log.unlink(missing_ok=True)
        return new
