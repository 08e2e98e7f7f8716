"""A server under test as a benchmark sees it: built once, started once per round.

To add a server, write a module here with an `Adapter` and add its line to `registry.py`. mosec.py
is the shortest example of a server from PyPI: a `PackagedAdapter`, and beside it
programs/mosec_program.py, which runs in the server's own environment.
"""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from offpath.handler.process.host_limits import count_cores
from offpath.profiling.load.generators import Call
from offpath.profiling.load.load_window import Groups, RunningServer
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers import network_namespace
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.programs.program_settings import ProgramSettings
from offpath.profiling.servers.server_process import (
    ServerProcess,
    command_line,
    is_ok,
    start_process,
)
from offpath.serving.process.ports import resolve_ports
from offpath.serving.server.server_settings import LOOPBACK

# As in archive/presets/cpu.yaml; every server under test has the same.
BATCH_SIZE = 8
MAX_BATCH_DELAY_MS = 1
PROGRAMS = Path(__file__).with_name("programs")


class Adapter(ABC):
    """A server under test: how it is built and started, and how a client calls it.

    `batch_size` is the largest batch, and is set before `prepare`; a server that cannot batch
    ignores it.
    """

    name: str
    batch_size: int

    @property
    def call(self) -> Call:
        """The form of a client's requests; by default TorchServe's."""
        return Call()

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The server's set-up, for the result: versions, batch size, delay, workers, threads."""

    def why_not(self) -> str | None:
        """Returns why the server cannot run on this machine, with the cure; None when it can.

        Starts nothing. The run continues with the others; the reason is printed and kept.
        """
        return None

    def prepare(self, folder: Path) -> None:
        """Builds what a start needs, once, into a folder of its own; may raise ExpectedError."""

    @abstractmethod
    def running(self, folder: Path) -> AbstractContextManager[RunningServer]:
        """Starts the server that `prepare` built into a folder, and waits until it is ready.

        It ends without leaving a process.

        Raises:
            ExpectedError: it does not start (a port that is taken, a model that does not load).
        """


@dataclass(frozen=True)
class Start:
    """One start of a packaged server: where it may write and listen.

    Attributes:
        folder: folder that `prepare` filled.
        scratch: temporary folder of this start; a short path, as sockets have room for 107 bytes.
        ports: free ports on loopback; requests come to the first.
    """

    python: Path
    folder: Path
    scratch: Path
    ports: tuple[int, ...]

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def port(self) -> int:
        return self.ports[0]

    def url(self, path: str) -> str:
        return f"http://{LOOPBACK}:{self.port}{path}"


class PackagedAdapter(Adapter):
    """A server from PyPI, run in an environment of its own.

    Attributes:
        program: name of the program's file in PROGRAMS.
        predict_path: path that takes a photograph.
        ready_path: path that answers 200 when the server is ready.
        ready_line: line in the log by which each worker tells that it is ready; empty for none.
        worker_mark: part of the command line of each process that runs the model.
        kind: what a worker does with a photograph, see `classifiers`.
    """

    environment: ClassVar[Environment]
    program: ClassVar[str]
    predict_path: ClassVar[str]
    ready_path: ClassVar[str]
    ready_line: ClassVar[str] = ""
    worker_mark: ClassVar[str]
    port_count: ClassVar[int] = 1
    kind: ClassVar[str] = "pillow"

    def __init__(self, model: ModelUnderTest, workers: int) -> None:
        self.model, self.workers = model, workers
        self.batch_size = BATCH_SIZE

    @property
    def threads(self) -> int:
        """Threads of each worker, as in our handler: cores / workers."""
        return max(1, count_cores() // self.workers)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "requirements": list(self.environment.requirements),
            "max_batch_size": self.batch_size,
            "max_batch_delay_ms": MAX_BATCH_DELAY_MS,
            "workers": self.workers,
            "threads": self.threads,
            "preprocessing": self.kind,
        }

    def why_not(self) -> str | None:
        if self.environment.find() is not None:
            return None
        size_mb = self.environment.size_mb
        return f"not set up here: offpath bench setup {self.name} ({size_mb} MB)"

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.build(folder)

    @contextmanager
    def running(self, folder: Path) -> Iterator[RunningServer]:
        with tempfile.TemporaryDirectory(prefix="offpath-", ignore_cleanup_errors=True) as scratch:
            ports = tuple(resolve_ports(LOOPBACK, [0] * self.port_count))
            start = Start(self.environment.python, folder, Path(scratch), ports)
            began_s = time.perf_counter()
            with start_process(
                self.name,
                self.make_command(start),
                start.log,
                lambda: self.is_ready(start),
                env=self.make_environment(start),
                scratch=start.scratch,
            ) as process:
                yield RunningServer(
                    start.url(self.predict_path),
                    lambda: self._list_groups(process),
                    process.is_running,
                    process.log,
                    began_s,
                )

    def _list_groups(self, process: ServerProcess) -> Groups:
        groups: dict[str, list[int]] = {"frontend": [], "workers": []}
        for member in process.members():
            line = command_line(member)
            if self.worker_mark in line:
                groups["workers"].append(member.pid)
            # The relay of a server in a namespace of its own is ours.
            elif network_namespace.__file__ not in line:
                groups["frontend"].append(member.pid)
        return groups

    def make_command(self, start: Start) -> list[str]:
        """Returns the server's command line; by default its program in PROGRAMS."""
        return [str(start.python), str(PROGRAMS / self.program)]

    def build(self, folder: Path) -> None:
        """Writes what a start needs; nothing by default."""

    def make_environment(self, start: Start) -> dict[str, str]:
        """Returns the server's variables: its program's settings, and `scratch` as TMPDIR."""
        settings = ProgramSettings(
            model=self.model.reference,
            port=start.port,
            batch_size=self.batch_size,
            max_batch_delay_ms=MAX_BATCH_DELAY_MS,
            workers=self.workers,
            threads=self.threads,
            kind=self.kind,
        )
        folders = [str(start.python.parent), os.environ.get("PATH", os.defpath)]
        return {
            **settings.to_environment(),
            "PATH": os.pathsep.join(folders),
            "OMP_NUM_THREADS": str(self.threads),
            "TMPDIR": str(start.scratch),
        }

    def is_ready(self, start: Start) -> bool:
        """Returns whether all workers are ready; httpx.TransportError where nothing listens."""
        if self.ready_line:
            printed = start.log.read_text(errors="replace").count(self.ready_line)
            if printed < self.workers:
                return False
        return is_ok(start.url(self.ready_path))()
