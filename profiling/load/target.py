"""What a benchmark needs of a server under test.

A further server is a module in `profiling/servers/` with a class that has these members,
and a line in its `registry.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from offpath.profiling.load.call import Call
from offpath.profiling.load.sampling import Groups

# As in archive/presets/cpu.yaml; every server under test gets the same.
BATCH_SIZE = 8
MAX_BATCH_DELAY_MS = 1
# The process group that is not the server's own (an S3 server): neither its CPU nor noise.
BESIDE = "beside"


class RunningServer(Protocol):
    """A server that answers."""

    predict_url: str

    def groups(self) -> Groups:
        """Process ids by group, for CPU and memory: `frontend`, `workers`, perhaps BESIDE."""

    def is_running(self) -> bool:
        """Whether it still runs."""

    def log_path(self) -> Path:
        """Where to look when it does not."""


class ServerUnderTest(Protocol):
    """A server that can be started, once per round."""

    name: str
    call: Call
    # Largest batch; a sweep sets it before `prepare`. A server that cannot batch ignores it.
    batch_size: int

    @property
    def settings(self) -> dict[str, Any]:
        """How it is set up, for the result file: versions, batch size, delay, workers, threads."""

    def why_not(self) -> str | None:
        """Why it cannot run on this machine, with the cure; None when it can. Starts nothing.

        The run goes on with the others; the reason is kept in the result and printed.
        """

    def prepare(self, folder: Path) -> None:
        """Builds what a start needs, once, into a folder of its own."""

    def running(self) -> AbstractContextManager[RunningServer]:
        """Starts it, waits until it is ready; stops it at the end, leaving no process.

        Raises:
            ExpectedError: it does not start (a port that is taken, a model that does not load).
        """
