"""Lines of /metrics on the workers of each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from offpath.serving.server.management import ModelStatus

LABELS = 'model="{}",version="{}"'
# Management does not say how a worker ended.
HOW = "unknown"
Version = tuple[str, str]


class WorkerCounts:
    """Counts a server's workers, from what its management says again and again.

    A worker has ended if its process is another one, or none, at the next reading. Of several that
    take the same place between two readings, one is counted.
    """

    def __init__(self) -> None:
        self._numbers: dict[Version, tuple[int, int]] = {}
        self._pids: dict[Version, set[int]] = {}
        self._ends: Counter[Version] = Counter()

    def note(self, versions: Iterable[Version], statuses: Iterable[ModelStatus]) -> None:
        """Takes a reading. A version without a status has no READY worker and wants as many."""
        for version in sorted(versions):
            self._numbers[version] = 0, self._numbers.get(version, (0, 1))[1]
        for status in statuses:
            version = status.model_name, status.model_version
            self._numbers[version] = status.ready_workers, status.min_workers
            pids = {pid for pid in status.worker_pids if pid > 0}
            self._ends[version] += len(self._pids.get(version, pids) - pids)
            self._pids[version] = pids

    def format(self) -> list[str]:
        """Returns the READY and the wanted workers, and those that have ended."""
        lines = [
            f"offpath_workers_{name}{{{LABELS.format(*version)}}} {numbers[idx]}"
            for idx, name in enumerate(("ready", "wanted"))
            for version, numbers in self._numbers.items()
        ]
        for version, count in self._ends.items():
            labels = f'{LABELS.format(*version)},how="{HOW}"'
            lines.append(f"offpath_worker_ends_total{{{labels}}} {count}")
        return lines
