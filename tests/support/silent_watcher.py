"""For load that nobody looks on at."""

from __future__ import annotations


class SilentWatcher:
    """See `offpath.profiling.load.plan.Watcher`."""

    windows = 0

    def on_window(self) -> None:
        self.windows += 1

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        pass
