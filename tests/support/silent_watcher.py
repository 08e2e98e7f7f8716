"""A watcher of a load that does nothing."""

from __future__ import annotations


class SilentWatcher:
    """Implements `Watcher` and ignores all calls."""

    windows = 0

    def on_window(self) -> None:
        self.windows += 1

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        pass
