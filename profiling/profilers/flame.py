"""A flame graph of `handle`: pyinstrument's samples of every thread that works for a request.

pyinstrument samples the thread that starts it. Each batch, and each piece of work on the handler's
own threads, gets its own sampler. All samples are joined at the end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from offpath.profiling.profilers.collector import Collector, Samples, watching_threads

# Time between two samples.
INTERVAL_S = 0.001
# pyinstrument's page loads fonts from the network. Without them it uses the browser's own.
FONTS = re.compile(r"https://fonts\.googleapis\.com/[^\"']*")
EMPTY_STYLE = "data:text/css,"
# It also puts names into a script as they are, so a name could end the script.
SAMPLES = re.compile(r"(?<=const sessionData = ).*")
# It opens with a tree of calls, and calls the flame graph a timeline.
TREE_FIRST, GRAPH_FIRST = '{viewMode:"call-stack"}', '{viewMode:"timeline"}'


class FlameCollector(Collector):
    """A sampler of stacks."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._sessions: list[Any] = []

    def watching(self) -> AbstractContextManager[None]:
        return watching_threads(self._sampling)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        from pyinstrument import Profiler

        profiler = Profiler(INTERVAL_S, async_mode="disabled")
        profiler.start()
        try:
            yield
        finally:
            session = profiler.stop()
            with self._lock:
                self._sessions.append(session)

    def finish(self, shorten: Callable[[str], str], path: Path) -> Samples:
        """Writes one self-contained HTML page."""
        from pyinstrument.processors import aggregate_repeated_calls
        from pyinstrument.renderers import HTMLRenderer

        session = join_sessions(self._sessions)
        session.target_description = session.program = self._title
        renderer = HTMLRenderer()
        # Without this the graph shows one batch after the other instead of their sum.
        renderer.preprocessors = [aggregate_repeated_calls]
        page = FONTS.sub(EMPTY_STYLE, renderer.render(session)).replace(TREE_FIRST, GRAPH_FIRST)
        page = SAMPLES.sub(lambda found: found[0].replace("<", r"\u003c"), page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
        return []


def join_sessions(sessions: list[Any]) -> Any:
    """Joins all samples in one session; `Session.combine` would copy them for each."""
    first = sessions[0]
    for other in sessions[1:]:
        first.frame_records.extend(other.frame_records)
        first.duration += other.duration
        first.cpu_time += other.cpu_time
        first.sample_count += other.sample_count
    return first
