"""Ends a process of a multiprocessing pool with its parent."""

from __future__ import annotations

import multiprocessing
import os
import threading


def follow_parent() -> None:
    """Ends this process when its parent is killed; a pool's process would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("not in a process of multiprocessing")

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
