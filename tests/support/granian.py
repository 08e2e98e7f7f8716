"""`offpath serve --server granian` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.front import FrontProcess, front


class GranianProcess(FrontProcess):
    """A running Granian behind its front door."""

    def supervisors(self) -> list[psutil.Process]:
        """Returns the supervisor of every server, which is the parent of its workers."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if any(part.endswith("supervisor.py") for part in child.cmdline()):
                    found.append(child)
        return found

    def servers(self) -> list[int]:
        """Returns every supervisor."""
        return [supervisor.pid for supervisor in self.supervisors()]

    def python_workers(self) -> list[int]:
        """Returns the workers of every server."""
        pids = []
        for one in self.supervisors():
            with suppress(psutil.NoSuchProcess):
                pids += [child.pid for child in one.children()]
        return pids


@contextmanager
def granian(
    store: Path, log_dir: Path, *options: str, **env: str
) -> Iterator[GranianProcess]:
    """Runs a Granian behind its front door and stops it at the end."""
    door = GranianProcess(store, log_dir, "--server", "granian", *options, **env)
    try:
        yield door
    finally:
        door.stop()


RunFront = Callable[..., AbstractContextManager[FrontProcess]]
# By the server behind the front door.
FRONTS: dict[str, RunFront] = {"torchserve": front, "granian": granian}
