from __future__ import annotations

import threading

import pytest

from offpath.serving.server.status_pages import StatusPages


def test_pages_whose_thread_cannot_be_started_are_closed_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    pages = StatusPages(lambda path, is_private: None)
    with pytest.raises(RuntimeError):
        pages.open_port("127.0.0.1", 0)
    pages.close()
