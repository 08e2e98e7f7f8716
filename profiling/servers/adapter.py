"""What servers under test from PyPI share; each one's own module says what is special.

To add a server: a module here with an `Adapter`, its line in `registry.py`, and for a library that
one programs the program in `services/`. mosec.py is the shortest example.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, MAX_BATCH_DELAY_MS, RunningServer
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.launched import (
    LOOPBACK,
    Launch,
    ServerProcess,
    environment_path_variable,
    is_ok,
    launched,
    on_free_ports,
)
from offpath.profiling.servers.marked import command_line
from offpath.profiling.servers.services.settings import ServiceSettings
from offpath.serving.process.ports import resolve_ports

SERVICES = "offpath.profiling.servers.services"
SERVICES_DIR = Path(__file__).parent / "services"
# Of each worker; as many workers as cores.
THREADS = 1


@dataclass(frozen=True)
class Start:
    """Where one start of a server may write and listen.

    Attributes:
        python: its environment's.
        folder: what `prepare` filled.
        scratch: a short path that goes with the start: sockets have room for 107 bytes.
        ports: free ones on loopback.
    """

    python: Path
    folder: Path
    scratch: Path
    ports: tuple[int, ...]

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / "server.log"

    @property
    def port(self) -> int:
        """The one for requests."""
        return self.ports[0]

    def url(self, path: str = "", port: int = 0) -> str:
        """An address of it."""
        return f"http://{LOOPBACK}:{self.ports[port]}{path}"

    def run_service(self, name: str, *arguments: str) -> list[str]:
        """The command that runs a program of `services/`."""
        return [str(self.python), "-m", f"{SERVICES}.{name}", *arguments]


class Adapter(ABC):
    """A server under test (`ServerUnderTest`) that we start.

    Attributes:
        name: as in the registry.
        environment: what it is installed from.
        predict_path: where it takes a picture.
        ready_path: answers 200 when it does.
        ready_line: what each worker has said in the log by then; empty where nothing tells.
        worker_mark: in the command line of each process that runs the model.
        port_count: how many it binds; requests come to the first.
        kind: what a worker does with a picture, see `services.classifiers`.
    """

    name: str
    environment: ClassVar[Environment]
    predict_path: ClassVar[str]
    ready_path: ClassVar[str]
    ready_line: ClassVar[str] = ""
    worker_mark: ClassVar[str]
    port_count: ClassVar[int] = 1
    kind: ClassVar[str] = "pillow"

    def __init__(self, model: ModelUnderTest, workers: int) -> None:
        self.model, self.workers = model, workers
        self.batch_size = BATCH_SIZE
        self.call = self.make_call()
        self._folder: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return {
            "requirements": list(self.environment.requirements),
            "max_batch_size": self.batch_size,
            "max_batch_delay_ms": MAX_BATCH_DELAY_MS,
            "workers": self.workers,
            "threads": THREADS,
            "preprocessing": self.kind,
        }

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        if self.environment.find() is not None:
            return None
        size_mb = self.environment.size_mb
        return f"not set up here: offpath bench setup {self.name} ({size_mb} MB)"

    def prepare(self, folder: Path) -> None:
        """See `ServerUnderTest`."""
        folder.mkdir(parents=True)
        self.build(folder)
        self._folder = folder

    def running(self) -> AbstractContextManager[RunningServer]:
        """See `ServerUnderTest`."""
        return on_free_ports(self._start)

    @contextmanager
    def _start(self) -> Iterator[RunningServer]:
        if self._folder is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        with tempfile.TemporaryDirectory(
            prefix="offpath-", ignore_cleanup_errors=True
        ) as scratch:
            ports = tuple(self.choose_ports())
            start = Start(self.find_python(), self._folder, Path(scratch), ports)
            command, env = self.make_command(start), self.make_environment(start)
            launch = Launch(self.name, command, start.log, env, scratch=start.scratch)
            with launched(launch, lambda: self.is_ready(start)) as process:
                self.finish_start(start, process)
                yield RunningAdapter(self, process, start.url(self.predict_path))

    def find_python(self) -> Path:
        """The environment's."""
        python = self.environment.find()
        if python is None:
            raise RuntimeError(f"server {self.name!r} was prepared without setup")
        return python

    @abstractmethod
    def make_command(self, start: Start) -> list[str]:
        """Its command line."""

    def make_call(self) -> Call:
        """How a client calls it; by default as TorchServe."""
        return Call()

    def build(self, folder: Path) -> None:
        """Writes what a start needs; nothing by default."""

    def choose_ports(self) -> list[int]:
        """Free ports."""
        return resolve_ports(LOOPBACK, [0] * self.port_count)

    def make_environment(self, start: Start) -> dict[str, str]:
        """Its variables: the service's settings among them; temporary files go into `scratch`."""
        settings = ServiceSettings(
            model=self.model.reference,
            port=start.port,
            batch_size=self.batch_size,
            max_batch_delay_ms=MAX_BATCH_DELAY_MS,
            workers=self.workers,
            threads=THREADS,
            kind=self.kind,
        )
        return {
            **settings.to_environment(),
            "PATH": environment_path_variable(start.python),
            "OMP_NUM_THREADS": str(THREADS),
            "TMPDIR": str(start.scratch),
        }

    def is_ready(self, start: Start) -> bool:
        """Whether all its workers are ready; httpx.TransportError: not yet."""
        if self.ready_line:
            said = start.log.read_text(errors="replace").count(self.ready_line)
            if said < self.workers:
                return False
        return is_ok(start.url(self.ready_path))()

    def finish_start(self, start: Start, process: ServerProcess) -> None:
        """What is left to do once it is ready; nothing by default."""

    def is_frontend(self, command_line: str) -> bool:
        """Whether a process that is no worker is the server's at all."""
        return True


class RunningAdapter:
    """A ready one (`RunningServer`); its workers are the processes with the model."""

    def __init__(self, adapter: Adapter, process: ServerProcess, url: str) -> None:
        self._adapter, self._process = adapter, process
        self.predict_url = url

    def groups(self) -> Groups:
        """See `RunningServer`."""
        groups: dict[str, list[int]] = {"frontend": [], "workers": []}
        for process in self._process.members():
            line = command_line(process)
            if self._adapter.worker_mark in line:
                groups["workers"].append(process.pid)
            elif self._adapter.is_frontend(line):
                groups["frontend"].append(process.pid)
        return groups

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return self._process.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._process.launch.log
