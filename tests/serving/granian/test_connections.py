"""A Granian without a front door whose clients keep connections open, on few descriptors."""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from offpath.serving.check.running import check_server
from tests.support.attacks import connect
from tests.support.descriptors import no_new_descriptors
from tests.support.eventually import eventually
from tests.support.front import check_addresses, load
from tests.support.guarantees import guarantee
from tests.support.hostile_clients import CHECKS, FORMS, OF_TORCHSERVE, Form, Target
from tests.support.images import jpeg

pytestmark = pytest.mark.server
MOST_DESCRIPTORS = 300
# Forms of request that every image gets an answer to.
PREDICTIONS = [name for name, form in FORMS.items() if form.is_prediction]


@pytest.fixture(scope="module")
def ready(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """Starts the server at a soft limit of 128 descriptors; yields its READY event."""
    log = tmp_path_factory.mktemp("connections") / "log"
    spool = log.with_name("spool")
    archive = Path(shutil.copy2(model_store / "near-free.mar", log.parent))
    record = {"OFFPATH_PREDICTION_LOG": f"file://{log.parent}/out", "OFFPATH_SPOOL_DIR": str(spool)}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "offpath", "serve", "--server", "granian"),
            *("--no-front", "--port", "0", "--metrics-port", "0", "--json"),
            *("--log-dir", str(log.parent)),
            *("--allow-host", "Models.example", str(archive)),
        ],
        stdout=subprocess.PIPE,
        stderr=open(log, "wb"),
        text=True,
        env={**os.environ, **record},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, MOST_DESCRIPTORS)),
    )
    try:
        said = json.loads(process.stdout.readline())
        yield {**said, "pid": process.pid, "logs": log.parent, "spool": spool, "archive": archive}
    finally:
        process.terminate()
        assert process.wait() == 0, log.read_text()


def find_workers(ready: dict) -> dict[int, str]:
    """Returns the status of each worker by its process id."""
    transport = httpx.HTTPTransport(uds=ready["management"].removeprefix("unix:"))
    with httpx.Client(transport=transport) as client:
        (model,) = client.get("http://localhost/models/near-free").json()
    return {worker["pid"]: worker["status"] for worker in model["workers"]}


@dataclass(frozen=True)
class Direct:
    """The server as a target of hostile clients; it stores no bodies."""

    ready: dict
    bodies: Path

    @property
    def url(self) -> str:
        return self.ready["inference"]

    def python_workers(self) -> list[int]:
        return list(find_workers(self.ready))

    def nginx_workers(self) -> list[int]:
        return []


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_hostile_clients(
    ready: dict, tmp_path: Path, form: Form, check: Callable[[Target, Form], None]
) -> None:
    check(Direct(ready, tmp_path), form)


def open_connections(stack: ExitStack, url: str, count: int) -> None:
    parts = urlsplit(url)
    for _ in range(count):
        stack.enter_context(socket.create_connection((parts.hostname, parts.port)))


def test_every_printed_address_leads_to_the_server(ready: dict) -> None:
    check_addresses(ready[kind] for kind in ("inference", "management", "metrics"))


def test_idle_connections_to_metrics_take_no_descriptors_and_no_threads(ready: dict) -> None:
    serve = psutil.Process(ready["pid"])
    assert serve.rlimit(psutil.RLIMIT_NOFILE)[0] == MOST_DESCRIPTORS
    with ExitStack() as stack:
        open_connections(stack, ready["metrics"], 2 * MOST_DESCRIPTORS)
        assert "offpath_worker_starts_total" in httpx.get(ready["metrics"]).text
        eventually(lambda: serve.num_threads() < 60 and serve.num_fds() < 100)
        url = f"{ready['inference']}/predictions/near-free"
        assert {httpx.post(url, content=jpeg()).status_code for _ in range(20)} == {200}


def test_idle_connections_to_predictions_leave_descriptors_and_cpu_time(ready: dict) -> None:
    workers = [psutil.Process(pid) for pid in find_workers(ready)]

    def cpu_s() -> float:
        return sum(worker.cpu_times().user for worker in workers)

    with ExitStack() as stack:
        open_connections(stack, ready["inference"], 2 * MOST_DESCRIPTORS)
        eventually(lambda: all(worker.num_fds() > 100 for worker in workers))
        began_s = cpu_s()
        # Each client that comes now waits in the kernel, and a full server does not spin.
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{ready['inference']}/ping", timeout=3)
        assert cpu_s() - began_s < 1
        assert all(worker.num_fds() < MOST_DESCRIPTORS - 20 for worker in workers)
    url = f"{ready['inference']}/predictions/near-free"
    assert {httpx.post(url, content=jpeg()).status_code for _ in range(20)} == {200}


def test_a_worker_that_starts_while_connections_are_full_opens_its_log(ready: dict) -> None:
    url = f"{ready['inference']}/predictions/near-free"
    before = find_workers(ready)
    with ExitStack() as stack:
        open_connections(stack, ready["inference"], 2 * MOST_DESCRIPTORS)
        os.kill(min(before), signal.SIGKILL)
        eventually(
            lambda: find_workers(ready).keys() - before
            and {*find_workers(ready).values()} == {"READY"}
        )
        (new,) = find_workers(ready).keys() - before
        # It gets connections that waited in the kernel, and has descriptors left.
        assert psutil.Process(new).num_fds() < MOST_DESCRIPTORS - 20

    def is_recorded() -> bool:
        assert httpx.post(url, content=jpeg()).status_code == 200
        return any(f"-{new}-" in path for path in glob.glob(f"{ready['spool']}/*/*"))

    eventually(is_recorded)


@guarantee("Descriptors that run out")
def test_a_server_outlives_a_lack_of_descriptors(ready: dict) -> None:
    killed, *others = find_workers(ready)
    supervisor = psutil.Process(killed).ppid()
    said, log = ready["logs"] / "log", ready["logs"] / "granian.log"
    waits = "waiting until files can be opened"
    with load(f"{ready['inference']}/predictions/near-free", [jpeg()], 4, 0.02) as seen:
        eventually(lambda: seen.statuses[200] > 50)
        with no_new_descriptors(ready["pid"], supervisor, *others):
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: waits in said.read_text() and waits in log.read_text())
        eventually(lambda: {*find_workers(ready)} - {killed, *others})
        count = seen.statuses[200]
        eventually(lambda: seen.statuses[200] > count + 50)
    assert {*others} < {*find_workers(ready)} and supervisor == psutil.Process(others[0]).ppid()
    assert set(seen.statuses) == {200} and "Traceback" not in said.read_text()


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize(
    ("size", "status"),
    [
        pytest.param(250_000, b"200", id="within-the-limit"),
        pytest.param(270_000, b"431", id="beyond-the-limit"),
    ],
)
@pytest.mark.parametrize("form", PREDICTIONS)
def test_unfinished_headers_have_a_limit(ready: dict, form: str, size: int, status: bytes) -> None:
    chosen = FORMS[form]
    body = chosen.wrap(jpeg())
    with connect(ready["inference"]) as connection:
        head = chosen.head(len(body)).removesuffix(b"\r\n")
        connection.sendall(head + b"x: " + b"v" * size)
        if status == b"200":
            connection.sendall(b"\r\n\r\n" + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 " + status)


@guarantee(
    "Uploads that are cut off",
    "serving/granian/worker.py",
    "return  # the client has left in the middle of its body",
    "await asyncio.Event().wait()",
)
@pytest.mark.parametrize("form", PREDICTIONS)
def test_uploads_that_are_cut_off_leave_nothing_in_memory(ready: dict, form: str) -> None:
    url, chosen = ready["inference"], FORMS[form]
    workers = [psutil.Process(pid) for pid in find_workers(ready)]
    fds = [worker.num_fds() for worker in workers]

    def cut_off(times: int) -> int:
        for number in range(times):
            with connect(url) as connection:
                # Small bodies are read as a whole.
                size = 100_000 if number % 2 else 50_000
                connection.sendall(chosen.head(size) + bytes(1000))
        eventually(lambda: [worker.num_fds() for worker in workers] <= fds)
        return sum(worker.memory_full_info().uss for worker in workers)

    before = cut_off(1500)
    assert cut_off(3000) - before < 12_000_000  # 4 kB each; one that stayed took 9 kB
    assert chosen.post(url, jpeg()).status_code == 200


@guarantee("Slow clients, half bodies, crowds")
def test_bodies_that_are_declared_and_never_sent_cost_nobody_an_answer(ready: dict) -> None:
    url, chosen = ready["inference"], OF_TORCHSERVE
    # Together 1.9 GB. The small ones fill what the large ones leave.
    heads = [chosen.head(size) for size in [30_000_000] * 60 + [1_100_000] * 80]
    is_over, rounds = threading.Event(), []

    def declare() -> None:
        """Declares bodies again and again, before any of them is slow."""
        with ExitStack() as stack:
            slots = [stack.enter_context(ExitStack()) for _ in heads]
            while not is_over.is_set():
                for slot, head in zip(slots, heads):
                    slot.close()
                    slot.enter_context(connect(url)).sendall(head)
                rounds.append(1)

    client = threading.Thread(target=declare)
    client.start()
    try:
        eventually(lambda: rounds)
        bodies = (jpeg(), jpeg() + bytes(1_200_000))
        statuses = [chosen.post(url, body).status_code for body in 20 * bodies]
    finally:
        is_over.set()
        client.join()
    assert statuses == [200] * len(statuses)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("localhost:1", 200, id="localhost"),
        pytest.param("127.9.9.9", 200, id="loopback"),
        pytest.param("models.EXAMPLE:80", 200, id="allowed"),
        pytest.param("evil.example", 403, id="another"),
        pytest.param("127.0.0.1.evil.example", 403, id="begins-like-loopback"),
        pytest.param("10.0.0.1", 403, id="another-address"),
    ],
)
@guarantee(
    "A web page whose name leads to loopback",
    "serving/process/ports.py",
    "return is_loopback(name) or name in names",
    "return True",
)
def test_granian_on_loopback_answers_to_its_names_alone(
    ready: dict, host: str, status: int
) -> None:
    url = ready["inference"]
    replies = [
        httpx.post(f"{url}/predictions/near-free", content=jpeg(), headers={"Host": host}),
        httpx.get(f"{url}/ping", headers={"Host": host}),
    ]
    assert [reply.status_code for reply in replies] == [status] * 2
    assert status == 200 or "--allow-host" in replies[0].json()["message"]


@guarantee(
    "Something removes a server's files in `/tmp`",
    "serving/granian/worker.py",
    "    unpack_missing(Path(model.archive), folder, worker.changed_ns)",
    "    pass",
)
def test_a_worker_unpacks_what_a_cleaner_removed(ready: dict) -> None:
    model = Path(ready["management"].removeprefix("unix:")).with_name("model-0")
    before = find_workers(ready)
    files = [path for path in model.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in files:
        path.unlink()
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: not before.keys() & find_workers(ready).keys())
    eventually(lambda: set(find_workers(ready).values()) == {"READY"})
    reply = httpx.post(f"{ready['inference']}/predictions/near-free", content=jpeg())
    assert reply.status_code == 200
    assert all(path.exists() for path in files)


def test_while_no_worker_can_load_connections_are_refused(ready: dict) -> None:
    model = Path(ready["management"].removeprefix("unix:")).with_name("model-0")

    def ask() -> int | str:
        """Returns the status of /ping, or the name of what happened instead."""
        try:
            return httpx.get(f"{ready['inference']}/ping", timeout=3).status_code
        except httpx.HTTPError as error:
            return type(error).__name__

    archive = Path(ready["archive"])
    away = archive.rename(archive.with_name("away"))
    shutil.rmtree(model)
    for worker in find_workers(ready):
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: ask() == "ConnectError")
    none = r'^offpath_workers_ready{model="near-free",version="1.0",.*} 0$'
    eventually(lambda: re.search(none, httpx.get(ready["metrics"]).text, re.MULTILINE))
    found = [finding.found for finding in check_server(ready["inference"])]
    assert any(re.fullmatch(r"0 of \d are READY", one) for one in found), found
    away.rename(archive)
    eventually(lambda: ask() == 200)
