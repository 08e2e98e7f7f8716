"""A server under test that starts in a moment: the known server in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from offpath.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.servers.adapter import Adapter
from tests.support.known_server import BehavingServer, Behaviour, run_known_server


class QuickServer(Adapter):
    """Answers {"cat": 0.75}.

    Args:
        dies: under load.
        cannot: why it cannot run here.
        refuses: it does not start.
        unbuilt: it cannot be built.
    """

    def __init__(
        self,
        name: str,
        dies: bool = False,
        cannot: str | None = None,
        refuses: bool = False,
        unbuilt: bool = False,
        call: Call | None = None,
        behaviour: Behaviour = Behaviour((0.01,)),
    ) -> None:
        self.name, self.dies, self.cannot, self.refuses = name, dies, cannot, refuses
        self.unbuilt = unbuilt
        self.call = call or Call()
        self.batch_size = 8
        self.behaviour = behaviour
        self.pids: list[int] = []

    @property
    def settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    def why_not(self) -> str | None:
        return self.cannot

    def prepare(self, folder: Path) -> None:
        if self.unbuilt:
            raise ExpectedError("no archiver")
        folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[RunningQuickServer]:
        if self.refuses:
            raise ExpectedError("cannot listen on 127.0.0.1:1: taken")
        with run_known_server(self.behaviour) as known:
            self.pids.append(known.pid)
            yield RunningQuickServer(self, known)


class RunningQuickServer:
    def __init__(self, server: QuickServer, known: BehavingServer) -> None:
        self.server, self.known = server, known
        self.predict_url = known.url

    def groups(self) -> dict[str, list[int]]:
        return {"frontend": [self.known.pid], "workers": []}

    def is_running(self) -> bool:
        if self.server.dies:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self.known.pid).kill()
            return False
        return psutil.pid_exists(self.known.pid)

    def log_path(self) -> Path:
        return Path("the.log")


class Listener:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.progress: list[tuple[int, int]] = []

    def on_step(self, text: str) -> None:
        self.steps.append(text)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        pass

    def on_progress(self, done: int, total: int) -> None:
        self.progress.append((done, total))

    def on_failure(self, server: str, reason: str) -> None:
        self.failures.append((server, reason))
