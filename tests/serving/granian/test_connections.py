"""A Granian without a front door whose clients keep connections open, on few descriptors."""

from __future__ import annotations

import glob
import http.client
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from offpath.serving.check.running import check_server
from tests.guarantees import guarantee
from tests.serving.conftest import FEW_DESCRIPTORS, Direct
from tests.serving.contract.hostile_clients import FORMS, OF_TORCHSERVE, connect, slow_upload
from tests.serving.processes import no_new_descriptors
from tests.support.eventually import MAX_S, eventually
from tests.support.front import load
from tests.support.images import jpeg

pytestmark = pytest.mark.server
# Forms of request that every image gets an answer to.
PREDICTIONS = [name for name, form in FORMS.items() if form.is_prediction]


def open_connections(stack: ExitStack, url: str, count: int) -> None:
    for _ in range(count):
        stack.enter_context(connect(url))


def test_idle_connections_to_metrics_take_no_descriptors_and_no_threads(granian: Direct) -> None:
    serve = psutil.Process(granian.process.pid)
    assert serve.rlimit(psutil.RLIMIT_NOFILE)[0] == FEW_DESCRIPTORS
    with ExitStack() as stack:
        open_connections(stack, granian.metrics_url, 2 * FEW_DESCRIPTORS)
        assert "offpath_worker_starts_total" in httpx.get(granian.metrics_url).text
        eventually(lambda: serve.num_threads() < 60 and serve.num_fds() < 100)
        url = f"{granian.url}/predictions/near-free"
        assert {httpx.post(url, content=jpeg()).status_code for _ in range(20)} == {200}


def test_idle_connections_to_predictions_leave_descriptors_and_cpu_time(granian: Direct) -> None:
    workers = [psutil.Process(pid) for pid in granian.describe_workers()]

    def cpu_s() -> float:
        return sum(worker.cpu_times().user for worker in workers)

    with ExitStack() as stack:
        open_connections(stack, granian.url, 2 * FEW_DESCRIPTORS)
        eventually(lambda: all(worker.num_fds() > 100 for worker in workers))
        began_s = cpu_s()
        # Each client that comes now waits in the kernel, and a full server does not spin.
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{granian.url}/ping", timeout=3)
        assert cpu_s() - began_s < 1
        assert all(worker.num_fds() < FEW_DESCRIPTORS - 20 for worker in workers)
    url = f"{granian.url}/predictions/near-free"
    assert {httpx.post(url, content=jpeg()).status_code for _ in range(20)} == {200}


def test_a_worker_that_starts_while_connections_are_full_opens_its_log(granian: Direct) -> None:
    url = f"{granian.url}/predictions/near-free"
    before = granian.describe_workers()
    with ExitStack() as stack:
        open_connections(stack, granian.url, 2 * FEW_DESCRIPTORS)
        os.kill(min(before), signal.SIGKILL)
        eventually(
            lambda: granian.describe_workers().keys() - before
            and {*granian.describe_workers().values()} == {"READY"}
        )
        (new,) = granian.describe_workers().keys() - before
        # It gets connections that waited in the kernel, and has descriptors left.
        assert psutil.Process(new).num_fds() < FEW_DESCRIPTORS - 20

    def is_recorded() -> bool:
        assert httpx.post(url, content=jpeg()).status_code == 200
        return any(f"-{new}-" in path for path in glob.glob(f"{granian.log_dir.parent}/spool/*/*"))

    eventually(is_recorded)


def test_kept_connections_move_to_a_worker_that_has_fewer(granian: Direct) -> None:
    """Begins with all clients at one worker; some move to the other, but a lone one does not."""
    url, workers = f"{granian.url}/predictions/near-free", granian.python_workers()
    body = jpeg()
    clients: list[http.client.HTTPConnection] = []
    while len(clients) < 6:
        client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        client.connect()
        if has_connection(workers[0], client):
            clients.append(client)
    stopped = threading.Event()

    def send(client: http.client.HTTPConnection) -> None:
        while not stopped.is_set():
            client.request("POST", urlsplit(url).path, body)
            assert client.getresponse().read()

    with ThreadPoolExecutor(len(clients)) as pool:
        try:
            lone = pool.submit(send, clients[0])
            kept = clients[0].sock
            time.sleep(1)
            assert clients[0].sock is kept
            sent = [lone, *(pool.submit(send, client) for client in clients[1:])]
            eventually(lambda: 2 <= sum(has_connection(workers[1], c) for c in clients) <= 4)
        finally:
            stopped.set()
    for one in sent:
        one.result()
    for client in clients:
        client.close()


def has_connection(worker: int, client: http.client.HTTPConnection) -> bool:
    """Tells whether the client's connection is a worker's; False while it has none."""
    sock = client.sock
    with suppress(OSError):
        port = sock.getsockname()[1] if sock is not None else None
        return any(
            connection.raddr and connection.raddr.port == port
            for connection in psutil.Process(worker).net_connections("tcp")
        )
    return False


@guarantee("Descriptors that run out")
def test_a_server_outlives_a_lack_of_descriptors(granian: Direct) -> None:
    killed, *others = granian.describe_workers()
    supervisor = psutil.Process(killed).ppid()
    log = granian.log_dir / "granian.log"
    waits = "waiting until files can be opened"
    with load(f"{granian.url}/predictions/near-free", [jpeg()], 4, 0.02) as seen:
        eventually(lambda: seen.statuses[200] > 50)
        with no_new_descriptors(granian.process.pid, supervisor, *others):
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: waits in granian.errors() and waits in log.read_text())
        eventually(lambda: {*granian.describe_workers()} - {killed, *others})
        count = seen.statuses[200]
        eventually(lambda: seen.statuses[200] > count + 50)
    assert {*others} < {*granian.describe_workers()} and supervisor == psutil.Process(
        others[0]
    ).ppid()
    # The killed worker's connections are reset, and what comes meanwhile waits for the next one.
    assert not seen.refused and seen.broken.total() <= 4, seen
    assert set(seen.statuses) == {200} and "Traceback" not in granian.errors()


@guarantee("Slow clients, half bodies, crowds")
@pytest.mark.parametrize(
    ("size", "status"),
    [
        pytest.param(250_000, b"200", id="within-the-limit"),
        pytest.param(270_000, b"431", id="beyond-the-limit"),
    ],
)
@pytest.mark.parametrize("form", PREDICTIONS)
def test_unfinished_headers_have_a_limit(
    granian: Direct, form: str, size: int, status: bytes
) -> None:
    chosen = FORMS[form]
    body = chosen.wrap(jpeg())
    with connect(granian.url) as connection:
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
def test_uploads_that_are_cut_off_leave_nothing_in_memory(granian: Direct, form: str) -> None:
    url, chosen = granian.url, FORMS[form]
    workers = [psutil.Process(pid) for pid in granian.describe_workers()]
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
def test_bodies_that_are_declared_and_never_sent_cost_nobody_an_answer(granian: Direct) -> None:
    url, chosen = granian.url, OF_TORCHSERVE
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


@guarantee(
    "Something removes a server's files in `/tmp`",
    "serving/granian/worker.py",
    "    unpack_missing(Path(model.archive), folder, worker.changed_ns)",
    "    pass",
)
def test_a_worker_unpacks_what_a_cleaner_removed_and_without_its_archive_nothing_listens(
    granian: Direct,
) -> None:
    def ask() -> int | str:
        """Returns the status of /ping, or the name of what happened instead."""
        try:
            return httpx.get(f"{granian.url}/ping", timeout=3).status_code
        except httpx.HTTPError as error:
            return type(error).__name__

    model = granian.run / "model-0"
    files = [path for path in model.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    archive = granian.log_dir.with_name("near-free.mar")
    away = archive.rename(archive.with_name("away"))
    for path in files:
        path.unlink()
    for worker in granian.describe_workers():
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: ask() == "ConnectError")
    none = r'^offpath_workers_ready{model="near-free",version="1.0",.*} 0$'
    eventually(lambda: re.search(none, httpx.get(granian.metrics_url).text, re.MULTILINE))
    found = [finding.found for finding in check_server(granian.url)]
    assert any(re.fullmatch(r"0 of \d are READY", one) for one in found), found
    away.rename(archive)
    eventually(lambda: ask() == 200)
    reply = httpx.post(f"{granian.url}/predictions/near-free", content=jpeg())
    assert reply.status_code == 200
    assert all(path.exists() for path in files)


# The last test of the server, which it ends.
@guarantee("SIGTERM")
def test_sigterm_answers_what_is_in_flight(granian: Direct) -> None:
    url = f"{granian.url}/predictions/near-free"
    with slow_upload(url, jpeg()) as upload:
        granian.process.terminate()
        eventually(lambda: is_refused(url))
    assert upload.result() == 200
    assert granian.process.wait(MAX_S) == 0


def is_refused(url: str) -> bool:
    """Tells whether nothing listens any more; a request could wait for the end of the drain."""
    port = urlsplit(url).port
    assert port is not None
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0
