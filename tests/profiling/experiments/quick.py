"""Experiments on servers that start in a moment: no model runs, every reply is a cat."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import httpx
import psutil
import pytest

from offpath.errors import ExpectedError
from offpath.profiling.experiments import compare
from offpath.profiling.load.call import Call
from offpath.profiling.load.limits import Rate
from offpath.profiling.load.model_under_test import ExpectedReply
from offpath.profiling.load.window import Load, LoadSample, Watcher, WindowLoad
from offpath.profiling.servers.adapter import Adapter
from tests.support.photographs import find_photograph

CAT = ExpectedReply("cat", 0.74, lead=3.0)
# Holds each request for 10 ms, and prints its port.
SERVER = """
import http.server, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.01)
        self.send_response(200)
        self.send_header("content-length", "13")
        self.end_headers()
        self.wfile.write(b'{"cat": 0.75}')
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
# An observer that does nothing.
LISTENER = Mock()
# Limits without processes.
METER = MagicMock()
METER.__enter__.return_value = METER
METER.measure_decode.return_value = Rate(10, 1.0, 2.0)
METER.measure_forward.return_value = Rate(30, 1.0, 2.0)
METER.other_cores.return_value = 0.0


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
    ) -> None:
        self.name, self.dies, self.cannot, self.refuses = name, dies, cannot, refuses
        self.unbuilt = unbuilt
        self.call = Call()
        self.batch_size = 8
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
        command = [sys.executable, "-c", SERVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.pids.append(process.pid)
            try:
                yield RunningQuickServer(self, process)
            finally:
                process.kill()


class RunningQuickServer:
    def __init__(self, server: QuickServer, process: subprocess.Popen[str]) -> None:
        self.server, self.process = server, process
        self.predict_url = f"http://127.0.0.1:{process.stdout.readline().strip()}/predictions/any"

    def groups(self) -> dict[str, list[int]]:
        return {"frontend": [self.process.pid], "workers": []}

    def is_running(self) -> bool:
        if self.server.dies:
            self.process.kill()
            return False
        return self.process.poll() is None

    def log_path(self) -> Path:
        return Path("the.log")


class QuickGenerator:
    """Threads of this process: Locust takes seconds to start."""

    name = "quick"

    def check(self, load: Load) -> None:
        pass

    def run(self, load: WindowLoad, watcher: Watcher) -> LoadSample:
        body = load.paths[0].read_bytes()
        with httpx.Client(trust_env=False) as client:

            def send(seconds: float) -> list[tuple[int, float]]:
                sent = []
                # As many on every machine: the quick server answers after 10 ms.
                for _ in range(round(seconds / 0.01)):
                    begin_s = time.perf_counter()
                    status = client.post(load.url, content=body).status_code
                    sent.append((status, 1e3 * (time.perf_counter() - begin_s)))
                return sent

            send(load.warm_up_s)
            watcher.on_window()
            begin_s = time.perf_counter()
            with ThreadPoolExecutor(load.clients) as pool:
                each = list(pool.map(send, [load.seconds or 0.0] * load.clients))
            elapsed_s = time.perf_counter() - begin_s
        watcher.on_progress(1, elapsed_s)
        replies = [reply for sent in each for reply in sent]
        statuses = Counter(str(status) for status, _ in replies)
        return LoadSample(elapsed_s, dict(statuses), [ms for _, ms in replies], 0.01)


def make_workload(folder: Path, name: str = "photos") -> str:
    """A folder with one photograph: a workload's name."""
    (folder / name).mkdir()
    path = folder / name / "a.jpg"
    path.write_bytes(find_photograph("china").path.read_bytes())
    return str(folder / name)


def serve(
    patch: pytest.MonkeyPatch, servers: Sequence[QuickServer], expected: ExpectedReply = CAT
) -> None:
    """An experiment finds these servers, whatever it is asked for."""

    def make(
        names: Sequence[str],
        model: object,
        workers: int,
        variants: object = (),
        batch_size: int = 8,
    ) -> list[QuickServer]:
        for server in servers:
            server.workers, server.batch_size = workers, batch_size
        return list(servers)

    patch.setattr(compare, "make_servers", make)
    patch.setattr(compare, "find_generator", lambda name: QuickGenerator())
    patch.setattr(compare, "make_checks", lambda model, photos: [(photos[0], expected)])


def are_gone(servers: Sequence[QuickServer]) -> bool:
    """Returns whether no process of the servers is left."""
    return not any(psutil.pid_exists(pid) for one in servers for pid in one.pids)
