"""`offpath serve --server granian` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.front import FrontProcess, front, list_children


class GranianProcess(FrontProcess):
    """A running Granian behind its front door."""

    def supervisors(self) -> list[psutil.Process]:
        """Returns the supervisor of every server, which is the parent of its workers."""
        found = []
        for child in list_children(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                if any(part.endswith("supervisor.py") for part in child.cmdline()):
                    found.append(child)
        return found

    def servers(self) -> list[int]:
        """Returns every supervisor."""
        return [supervisor.pid for supervisor in self.supervisors()]

    def python_workers(self) -> list[int]:
        """Returns the workers of every server."""
        return [child.pid for one in self.servers() for child in list_children(one)]


@contextmanager
def granian(store: Path, log_dir: Path, *options: str, **env: str) -> Iterator[GranianProcess]:
    """Runs a Granian behind its front door and stops it at the end."""
    door = GranianProcess(store, log_dir, "--server", "granian", *options, **env)
    try:
        yield door
    finally:
        door.stop()


RunFront = Callable[..., AbstractContextManager[FrontProcess]]
# By the server behind the front door.
FRONTS: dict[str, RunFront] = {"torchserve": front, "granian": granian}
