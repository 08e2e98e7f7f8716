"""Kills, reloads and stops a front door under load: no request, record or file is lost.

One round of each; tests/reliability has twenty.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.serving.client import Client
from tests.guarantees import guarantee
from tests.serving.ends import check_no_reload, last_load
from tests.serving.processes import no_new_descriptors
from tests.serving.scrape import sum_metric
from tests.support.eventually import eventually
from tests.support.front import (
    BODIES,
    PARTS,
    PATH,
    PAUSE_S,
    FrontProcess,
    answer_some,
    kill_part,
    run_kill_round,
)

pytestmark = pytest.mark.server


@pytest.fixture
def door(torchserve_door: FrontProcess) -> FrontProcess:
    return torchserve_door


def kill_counted(door: FrontProcess, part: str) -> None:
    """Kills a part; after the server, /metrics has to say that its workers are missing."""

    def count(what: str) -> float:
        return sum_metric(door.metrics_url, f"offpath_workers_{what}", model="near-free")

    wanted = eventually(lambda: count("wanted"))
    eventually(lambda: count("ready") == wanted)
    kill_part(door, part)
    if part == "server":
        eventually(lambda: (count("ready"), count("wanted")) == (0, wanted))


@guarantee("A worker is killed")
@guarantee(
    "nginx or its worker is killed",
    "serving/front/door.py",
    "died = not nginx.is_running()",
    "died = False",
)
@guarantee(
    "The server is killed",
    "serving/front/door_tasks.py",
    "        self.rotation.begin(server.plan)",
    "        self.rotation.begin()",
)
@pytest.mark.parametrize("part", PARTS)
def test_killed_process_is_replaced_and_leaves_no_body(
    door: FrontProcess, part: str, model_store: Path
) -> None:
    archive = model_store / "near-free.mar"
    good = archive.read_bytes()
    try:
        # As if somebody were copying another archive into the store.
        archive.write_bytes(good[: len(good) // 2])
        seen = run_kill_round(door, part, kill_counted)
    finally:
        archive.write_bytes(good)
    print(f"{part}: {seen}")
    assert set(seen.statuses) <= {200, 500, 502, 503}
    if part == "worker":
        name, model = "offpath_worker_ends_total", "near-free"
        eventually(lambda: sum_metric(door.metrics_url, name, model=model) > 0)


def test_nginx_is_replaced_while_the_server_hangs(door: FrontProcess) -> None:
    """Kills nginx several times, once at least while the command waits for the server's state."""
    (server,) = door.servers()
    os.kill(server, signal.SIGSTOP)
    try:
        for _ in range(4):
            before = set(door.children("nginx"))
            kill_part(door, "nginx")
            eventually(lambda: set(door.children("nginx")) - before and door.nginx_workers(), 15)
    finally:
        os.kill(server, signal.SIGCONT)
    eventually(door.is_healthy)


@pytest.mark.parametrize("body", BODIES)
def test_invocations_leads_to_the_only_model(door: FrontProcess, body: bytes) -> None:
    with Client(door.url) as client:
        answer = client.predict(body)
    assert answer.labels and answer.request_id
    door.ledger.append(answer.request_id)
    # Not to whatever a client appends.
    assert httpx.post(f"{door.url}/invocations/x", content=body).status_code == 404
    assert httpx.get(f"{door.url}/invocations").status_code == 405


@guarantee("Descriptors that run out")
@guarantee(
    "File descriptors run out",
    "serving/process/resources.py",
    "if error.errno not in WHAT:",
    "if True:",
)
def test_supervisors_and_workers_outlive_a_lack_of_descriptors(door: FrontProcess) -> None:
    """Neither the server nor `offpath serve` can open anything for a while."""

    def read_logs() -> str:
        return "".join(path.read_text() for path in door.log_dir.glob("*/*.log"))

    workers = door.python_workers()
    forker = psutil.Process(workers[0]).ppid()
    with door.load(PATH, BODIES[:1], pause_s=PAUSE_S) as seen:
        answer_some(seen)
        with no_new_descriptors(door.process.pid, forker):
            os.kill(workers[0], signal.SIGKILL)
            eventually(lambda: "waiting until files can be opened" in door.errors())
            own_log = Path(f"/proc/{forker}/fd/1")
            eventually(lambda: "Too many open files" in own_log.read_text())
            answer_some(seen)
        eventually(lambda: len(set(door.python_workers()) - {workers[0]}) == len(workers))
        with no_new_descriptors(*workers[1:]):
            eventually(lambda: "the shipper: OSError: [Errno 24]" in read_logs())
        eventually(door.is_healthy)
        answer_some(seen)
    assert door.process.poll() is None and forker == psutil.Process(workers[1]).ppid()
    assert "Traceback" not in door.errors()


# The last test of the door, which it ends.
@guarantee("Poisoned spools, segments and objects")
@guarantee(
    "SIGTERM",
    "handler/prediction_log/spool.py",
    "        segment.append(data, records, self._is_synced)",
    "        self.appended == 3 or segment.append(data, records, self._is_synced)",
)
@guarantee(
    "SIGTERM",
    "serving/front/nginx.py",
    "        self._signal(signal.SIGQUIT)",
    "        self._signal(signal.SIGTERM)",
)
def test_sigterm_answers_what_was_accepted_and_the_log_has_it_once(door: FrontProcess) -> None:
    with last_load(door, PATH, BODIES) as seen:
        answer_some(seen)
        door.process.terminate()
        # A balancer learns of the end while all requests are still answered (--unready-s).
        eventually(lambda: httpx.get(f"{door.url}/ping", trust_env=False).status_code == 503)
        assert not seen.refused
        answer_some(seen)
        assert not seen.refused and door.process.wait(60) == 0
    check_no_reload(door)
    for private in (door.log_dir, *door.log_dir.parent.glob("log/dt=*/*/*")):
        assert private.stat().st_mode & 0o7 == 0, "every user can read it"
