"""Watches what a handler's own threads do for requests, without their waiting for work.

A pool's thread is watched during each work item. A thread that the handler starts for a request is
watched from start to end. Threads that existed before (metrics, log shipping) do not work for
requests and are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pool_module
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Watching = Callable[[], AbstractContextManager[None]]


@contextmanager
def watching_threads(watch: Watching) -> Iterator[None]:
    """Enters `watch()` on every worker thread around its work, while the block runs."""
    # Any: mypy forbids assigning to a method.
    item_class: Any = pool_module._WorkItem
    thread_class: Any = threading.Thread
    run_item, run_thread = item_class.run, thread_class.run

    # From Python 3.14 on, `run` takes the pool's context.
    def watch_item(item: Any, *args: Any) -> None:
        with watch():
            run_item(item, *args)

    def watch_thread(thread: threading.Thread) -> None:
        # A pool starts a thread with its first item: the items are watched, not the whole thread.
        if getattr(thread, "_target", None) is pool_module._worker:  # type: ignore[attr-defined]
            run_thread(thread)
            return
        with watch():
            run_thread(thread)

    item_class.run = watch_item
    thread_class.run = watch_thread
    try:
        yield
    finally:
        item_class.run = run_item
        thread_class.run = run_thread
