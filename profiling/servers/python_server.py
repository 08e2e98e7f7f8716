"""A Python server under test: one of the programs in `services`, run in an environment of its own.

What the four share. A server's own module has its requirements, its command line, and how its
processes are told apart.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, MAX_BATCH_DELAY_MS
from offpath.profiling.servers.environments import find_environment
from offpath.profiling.servers.launched import (
    STOP_TIMEOUT_S,
    Launch,
    ServerProcess,
    environment_path_variable,
    launched,
    on_free_ports,
)
from offpath.profiling.servers.marked import (
    MODULE,
    VARIABLE,
    command_line,
    find_marked,
    kill_marked,
)
from offpath.profiling.servers.services.settings import ServiceSettings
from offpath.serving.guard import Guard
from offpath.serving.ports import resolve_ports

LOOPBACK = "127.0.0.1"
SERVICES = "offpath.profiling.servers.services"


class RunningPythonServer:
    """A ready one; its workers are the processes with the model."""

    def __init__(
        self, owner: PythonServer, server: ServerProcess, server_id: str, url: str
    ) -> None:
        self._owner, self._server, self._id = owner, server, server_id
        self.predict_url = url

    def groups(self) -> Groups:
        """See `RunningServer`."""
        frontend, workers = [], []
        for process in find_marked(self._id):
            line = command_line(process)
            if self._owner.is_worker(line):
                workers.append(process.pid)
            elif self._owner.is_frontend(line):
                frontend.append(process.pid)
        return {"frontend": frontend, "workers": workers}

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return self._server.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._server.launch.log


class PythonServer(ABC):
    """A server under test (`ServerUnderTest`) from a program in `services`.

    Attributes:
        environment: its environment's name.
        requirements: pip's, pinned.
        size_mb: what they take on disk, for the message that offers to install them.
        predict_path: where its service takes a picture.
    """

    environment: ClassVar[str]
    requirements: ClassVar[Sequence[str]]
    size_mb: ClassVar[int]
    predict_path: ClassVar[str]

    def __init__(self, name: str, model: ModelUnderTest, workers: int) -> None:
        self.name, self.model, self.workers = name, model, workers
        self.call = Call()
        self.batch_size = BATCH_SIZE
        self._folder: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return {
            "requirements": list(self.requirements),
            "max_batch_size": self.batch_size,
            "max_batch_delay_ms": MAX_BATCH_DELAY_MS,
            "workers": self.workers,
            "threads": 1,
            "preprocessing": "pillow",
        }

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        if find_environment(self.environment, self.requirements) is None:
            return (
                f"not set up here: offpath bench setup {self.name} ({self.size_mb} MB)"
            )
        return None

    def prepare(self, folder: Path) -> None:
        """See `ServerUnderTest`."""
        folder.mkdir(parents=True)
        self._folder = folder

    def running(self) -> AbstractContextManager[RunningPythonServer]:
        """See `ServerUnderTest`."""
        return on_free_ports(self._start)

    @contextmanager
    def _start(self) -> Iterator[RunningPythonServer]:
        if self._folder is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        python = find_environment(self.environment, self.requirements)
        if python is None:
            raise RuntimeError(f"server {self.name!r} was prepared without setup")
        (port,) = resolve_ports(LOOPBACK, [0])
        server_id = uuid.uuid4().hex
        # Not below our folder: its path may be too long for the sockets in there (107 bytes).
        scratch = Path(tempfile.mkdtemp(prefix="offpath-"))
        launch = Launch(
            self.name,
            self.make_command(python, port),
            self._folder / "server.log",
            self.make_environment(python, port, scratch) | {VARIABLE: server_id},
        )
        base_url = f"http://{LOOPBACK}:{port}"
        guard = Guard(server_id, module=MODULE)
        try:
            with launched(
                launch, lambda: self.is_ready(base_url, launch.log)
            ) as server:
                url = base_url + self.predict_path
                yield RunningPythonServer(self, server, server_id, url)
        finally:
            kill_marked(server_id, STOP_TIMEOUT_S)
            guard.release()
            shutil.rmtree(scratch, ignore_errors=True)

    def make_environment(
        self, python: Path, port: int, scratch: Path
    ) -> dict[str, str]:
        """The service's settings; temporary files go into `scratch`."""
        settings = ServiceSettings(
            self.model.reference,
            port,
            self.batch_size,
            MAX_BATCH_DELAY_MS,
            self.workers,
        )
        return {
            **settings.to_environment(),
            "PATH": environment_path_variable(python),
            "OMP_NUM_THREADS": str(settings.threads),
            "TMPDIR": str(scratch),
        }

    @abstractmethod
    def make_command(self, python: Path, port: int) -> list[str]:
        """Its command line."""

    @abstractmethod
    def is_ready(self, base_url: str, log: Path) -> bool:
        """Whether all its workers are ready; httpx.TransportError: not yet."""

    @abstractmethod
    def is_worker(self, command_line: str) -> bool:
        """Whether a process of it runs the model."""

    def is_frontend(self, command_line: str) -> bool:
        """Whether a process that is no worker is the server's at all."""
        return True
