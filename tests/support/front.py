"""`offpath serve` as a user runs it, with its signals, reloads and load, and kills under it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from select import select
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil

from offpath.serving.check.running import check_server
from offpath.serving.finding import State
from offpath.serving.prediction_log.reading import open_store_at, read_records
from offpath.serving.prediction_log.shipping import ship_spool
from offpath.serving.process.processes import find_workers
from tests.support.eventually import MAX_S, eventually
from tests.support.images import jpeg


class ServeProcess:
    """A running `offpath serve`.

    Attributes:
        ready: its READY event, with every address that it has printed.
        url: base URL of predictions.
        run: its folder of sockets and links.
    """

    def __init__(
        self, errors: Path, *options: object, prefix: Sequence[str] = (), **env: str
    ) -> None:
        command = [*prefix, sys.executable, "-m", "offpath", "serve", "--json", "--port", "0"]
        command += ["--metrics-port", "0", *map(str, options)]
        self._errors, env = errors, {**os.environ, **env}
        with open(errors, "wb") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True
            )
        self.read_ready()

    def read_ready(self) -> None:
        """Waits for the next READY event."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.ready: dict[str, Any] = json.loads(line)
        self.url: str = self.ready["inference"]
        self.metrics_url: str = self.ready["metrics"]
        self.run = Path(self.ready["management"].removeprefix("unix:")).parent

    @property
    def addresses(self) -> dict[str, str]:
        """Returns every address that it has printed, by kind."""
        return {kind: self.ready[kind] for kind in ("inference", "management", "metrics")}

    def errors(self) -> str:
        """Returns the text printed on standard error."""
        return self._errors.read_text(errors="replace")

    def is_healthy(self) -> bool:
        """Returns the result of the health check that a load balancer would make."""
        try:
            ping = httpx.get(f"{self.url}/ping", trust_env=False, verify=False)
        except httpx.HTTPError:
            return False
        return ping.status_code == 200

    def terminate(self, timeout_s: float = MAX_S) -> int:
        """Sends SIGTERM, waits for the end and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """Ends it without waiting for requests in flight."""
        self.process.kill()
        self.process.wait()


class FrontProcess(ServeProcess):
    """A running front door, before TorchServe if the options say nothing else.

    As a context manager it is stopped at the end of the block.

    Attributes:
        log_dir: folder of its logs.
        bodies: its folder of request bodies.
        ledger: ids of requests that got 200, each written when its answer came.
    """

    def __init__(self, store: Path, log_dir: Path, *options: object, **env: Any) -> None:
        self.log_dir, self.ledger = log_dir, list[str]()
        options = ("--front", "--log-dir", log_dir, "--model-store", store, *options)
        super().__init__(log_dir.with_suffix(".err"), *options, **env)
        config = (self.run / "nginx.conf").read_text()
        self.bodies = Path(re.findall(r"client_body_temp_path (\S+);", config)[0])

    def __enter__(self) -> FrontProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def children(self, name: str) -> list[int]:
        """Returns its processes of a program or script, such as `java` or `nginx`."""
        return [child.pid for child in list_children(self.process.pid, name)]

    def nginx_workers(self) -> list[int]:
        """Returns nginx's workers."""
        masters = self.children("nginx")
        return [child.pid for master in masters for child in list_children(master)]

    def supervisors(self) -> list[int]:
        """Returns the supervisor of every Granian, which is the parent of its workers."""
        return self.children("supervisor.py")

    def servers(self) -> list[int]:
        """Returns the first process of every server behind the door: Java or a supervisor."""
        return [*self.children("java"), *self.supervisors()]

    def python_workers(self) -> list[int]:
        """Returns the Python workers of every server."""
        of_java = [pid for java in self.children("java") for pid in find_workers(java)]
        return of_java + [child.pid for one in self.supervisors() for child in list_children(one)]

    def processes(self) -> set[int]:
        """Returns the servers, their workers, nginx and its workers."""
        nginx = [*self.children("nginx"), *self.nginx_workers()]
        return {*self.servers(), *self.python_workers(), *nginx}

    def reload(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs `offpath reload`."""
        process = self.begin_reload(*options)
        output, errors = process.communicate(timeout=2 * MAX_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def begin_reload(self, *options: str) -> subprocess.Popen[str]:
        """Starts `offpath reload`."""
        return subprocess.Popen(
            [sys.executable, "-m", "offpath", "reload", "--url", self.url, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def load(
        self, path: str, bodies: list[bytes], clients: int = 8, pause_s: float = 0.0
    ) -> AbstractContextManager[Seen]:
        """Runs `load` with the door's ledger."""
        return load(self.url + path, bodies, clients, pause_s, self.ledger)

    def check_log(self, folder: Path) -> list[dict[str, Any]]:
        """Ends the door, and checks that each request of its ledger is in the log once.

        Returns the records. None has a lone surrogate, which UTF-8 cannot express.
        """
        self.stop()
        records = read_log(folder)
        json.dumps(records, ensure_ascii=False).encode()
        logged = Counter(str(record["event_id"]) for record in records)
        lost = [one for one in self.ledger if one not in logged]
        doubled = [one for one, count in logged.items() if count > 1]
        assert (lost, doubled) == ([], []), f"of {len(self.ledger)} answered"
        return records

    def stop(self) -> None:
        """Ends the door without waiting for requests in flight."""
        self.kill()
        eventually(lambda: not self.run.exists() and not self.bodies.exists())


def list_children(pid: int, name: str = "") -> list[psutil.Process]:
    """Returns the children of a process, or those of a program or script; any may have ended."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                files = (Path(part).name for part in child.cmdline())
                if not name or name == child.name() or name in files:
                    found.append(child)
    return found


def granian(store: Path, log_dir: Path, *options: object, **env: str) -> FrontProcess:
    """Runs a front door before Granian."""
    return FrontProcess(store, log_dir, "--server", "granian", *options, **env)


RunFront = Callable[..., FrontProcess]
# By the server behind the front door.
FRONTS: dict[str, RunFront] = {"torchserve": FrontProcess, "granian": granian}


@contextmanager
def logged(run: RunFront, store: Path, folder: Path, *options: object) -> Iterator[FrontProcess]:
    """Runs a door; checks at its end, after a failed test too, that the log has its ledger."""
    with run(store, folder / "logs", *options, **log_variables(folder)) as door:
        try:
            yield door
        finally:
            door.check_log(folder)


def check_addresses(addresses: Iterable[str]) -> None:
    """Checks that `offpath check` finds the server, its metrics and nothing wrong by each."""
    for url in addresses:
        # A worker on a busy machine may miss a report, and is not READY for a moment.
        eventually(lambda: is_well(url))


def is_well(url: str) -> bool:
    findings = list(check_server(url))
    wrong = [f"{one.area}: {one.found}" for one in findings if one.state is State.WRONG]
    metrics = [one.state for one in findings if one.subject == "metrics"]
    if wrong or metrics != [State.OK]:
        print(f"{url}: {wrong}, metrics {metrics}")
    return not wrong and metrics == [State.OK]


class Reply(NamedTuple):
    """A reply, when its request began (time.monotonic), and the seconds until it was there."""

    status: int
    request_id: str
    began_s: float
    took_s: float


@dataclass(repr=False)
class Seen:
    """The results of a load, as its clients saw them.

    Attributes:
        replies: in the order in which they came.
        refused: connections that were not accepted.
        broken: requests without an answer on a connection, with the error's name.
        new_broken: how many of these were the first on their connection. A server that ends resets
            connections that it has not accepted yet.
        pause_s: seconds between an answer and the client's next request; a test may set it while
            the load runs.
    """

    replies: list[Reply] = field(default_factory=list)
    refused: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    new_broken: int = 0
    pause_s: float = 0.0

    @property
    def statuses(self) -> Counter[int]:
        """Counts the replies by status."""
        return Counter(reply.status for reply in self.replies)

    @property
    def answered(self) -> list[str]:
        """Returns the ids of the requests that got 200."""
        return [reply.request_id for reply in self.replies if reply.status == 200]

    @property
    def failed(self) -> int:
        """Counts the requests that got anything but 200."""
        others = self.statuses.total() - self.statuses[200]
        return others + self.refused + self.broken.total()

    def __repr__(self) -> str:
        return (
            f"{dict(self.statuses)}, {self.refused} refused, broken {dict(self.broken)}"
            f" ({self.new_broken} on new connections)"
        )


@contextmanager
def load(
    url: str,
    bodies: Sequence[bytes],
    clients: int = 8,
    pause_s: float = 0.0,
    ledger: list[str] | None = None,
    timeout_s: float = MAX_S,
    source: tuple[str, int] | None = None,
    headers: Mapping[str, str] = {},
) -> Iterator[Seen]:
    """Runs clients that send one request after the other, each on its own connection.

    A refused client tries again a little later, unless it is hostile, which those are that connect
    from an address of their own. Ids of answered requests go into the ledger too.
    """
    seen, stop = Seen(pause_s=pause_s), threading.Event()
    parts = urlsplit(url)

    def send(number: int) -> None:
        connection = HTTPConnection(parts.netloc, timeout=timeout_s, source_address=source)
        while not stop.is_set():
            number += 1
            is_new = not is_open(connection)
            began_s = time.monotonic()
            try:
                if is_new:
                    connection.connect()
            except OSError:
                seen.refused += 1
                stop.wait(0.1)
                continue
            try:
                with suppress(BrokenPipeError, ConnectionResetError):  # by an early reply
                    body = bodies[number % len(bodies)]
                    connection.request("POST", parts.path, body, headers)
                reply = connection.getresponse()
                reply.read()
            except (OSError, HTTPException) as error:
                seen.broken[f"{type(error).__name__}: {error}"] += 1
                seen.new_broken += is_new
                connection.close()
                stop.wait(seen.pause_s)
                continue
            request_id = reply.headers.get("x-request-id", "")
            took_s = time.monotonic() - began_s
            seen.replies.append(Reply(reply.status, request_id, began_s, took_s))
            if reply.status == 200 and ledger is not None:
                ledger.append(request_id)
            is_sent_away = source is None and "retry-after" in reply.headers
            stop.wait(0.1 if is_sent_away else seen.pause_s)
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        sent = [pool.submit(send, number) for number in range(clients)]
        try:
            yield seen
        finally:
            stop.set()
    for one in sent:
        one.result()


def is_open(connection: HTTPConnection) -> bool:
    """Tells whether a connection is open; one that the server has closed is closed here too."""
    if connection.sock is not None and select([connection.sock], [], [], 0)[0]:
        connection.close()
    return connection.sock is not None


def log_variables(folder: Path) -> dict[str, str]:
    """Returns the environment of a prediction log that is shipped to a folder."""
    return {
        "OFFPATH_PREDICTION_LOG": (folder / "log").as_uri(),
        "OFFPATH_SPOOL_DIR": str(folder / "spool"),
    }


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Reads the log's records, once no process writes there any more."""

    def is_shipped() -> bool:
        report = ship_spool(folder / "spool", timeout_s=MAX_S)
        return not report.living_segments and not report.left_segments

    eventually(is_shipped)
    store = open_store_at((folder / "log").as_uri())
    return list(read_records(store))


PATH = "/predictions/near-free"
# Both roads.
BODIES = [jpeg(size=(500, 333)), jpeg(size=(2048, 1365))]
# Between a client's requests while a server starts, which shares two cores with the load.
PAUSE_S = 0.05


# The processes of each part of a door, of which tests kill the first. The server comes last.
PARTS: dict[str, Callable[[FrontProcess], list[int]]] = {
    "worker": FrontProcess.python_workers,
    "nginx_worker": FrontProcess.nginx_workers,
    "nginx": lambda door: door.children("nginx"),
    "server": FrontProcess.servers,
}


def kill_part(door: FrontProcess, part: str) -> None:
    os.kill(PARTS[part](door)[0], signal.SIGKILL)


def answer_some(seen: Seen, more: int = 20) -> None:
    """Waits until this many further requests have been answered."""
    before = len(seen.answered)
    eventually(lambda: len(seen.answered) >= before + more)


def run_kill_round(
    door: FrontProcess, part: str, kill: Callable[[FrontProcess, str], None] = kill_part
) -> Seen:
    """Kills a part's process under load, and waits until all is well again."""
    with door.load(PATH, BODIES) as seen:
        answer_some(seen)
        before = door.processes()
        kill(door, part)
        seen.pause_s = PAUSE_S
        eventually(lambda: before - door.processes())
        eventually(lambda: door.is_healthy() and len(door.processes()) == len(before))
        answer_some(seen)
    eventually(lambda: not list(door.bodies.iterdir()))
    return seen
