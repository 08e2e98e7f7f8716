"""Kills, reloads and stops a front door under load: no request, record or file is lost.

One round of each; tests/reliability has twenty.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from offpath.serving.client import Client
from tests.conftest import build
from tests.support.door_rounds import (
    BODIES,
    KILLS,
    PATH,
    PAUSE_S,
    answer_some,
    begin_reload,
    count_labels,
    kill,
    kill_server,
    kill_worker,
    processes,
    replaced,
    run_kill_round,
)
from tests.support.eventually import MOST_S, eventually
from tests.support.front import (
    FrontProcess,
    check_hostile_user_ids,
    front,
    is_alive,
    logged,
    send_hostile_user_ids,
)
from tests.support.images import jpeg

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the door's logs."""
    return tmp_path_factory.mktemp("front-log")


@pytest.fixture(scope="module")
def door(model_store: Path, folder: Path) -> Iterator[FrontProcess]:
    with logged(front, model_store, folder, "near-free", "--invocations") as running:
        yield running


def kill_counted_server(door: FrontProcess) -> None:
    """Kills the server, and waits until /metrics says that its workers are missing."""

    def read() -> list[str]:
        """Returns how many are READY and how many are wanted."""
        page = httpx.get(door.metrics_url, trust_env=False).text
        line = r'^offpath_workers_(?:ready|wanted){model="near-free",version="1.0"} (\d+)$'
        return re.findall(line, page, re.MULTILINE)

    _, wanted = eventually(read)
    assert wanted != "0"
    eventually(lambda: read() == [wanted, wanted])
    kill_server(door)
    eventually(lambda: read() == ["0", wanted])


@pytest.mark.parametrize("kill_one", [*KILLS[:-1], kill_counted_server])
def test_killed_process_is_replaced_and_leaves_no_body(
    door: FrontProcess, kill_one: Callable[[FrontProcess], None]
) -> None:
    seen = run_kill_round(door, kill_one)
    print(f"{kill_one.__name__}: {seen}")
    assert set(seen.statuses) <= {200, 500, 502, 503}
    if kill_one is kill_worker:
        ended = re.compile(r'^offpath_worker_ends_total{model="near-free".*} [1-9]', re.M)
        eventually(lambda: ended.search(httpx.get(door.metrics_url, trust_env=False).text))


@pytest.mark.parametrize("body", BODIES)
def test_invocations_leads_to_the_only_model(door: FrontProcess, body: bytes) -> None:
    with Client(door.url) as client:
        answer = client.predict(body)
    assert answer.labels and answer.request_id
    door.ledger.append(answer.request_id)
    # Not to whatever a client appends.
    assert httpx.post(f"{door.url}/invocations/x", content=body).status_code == 404
    assert httpx.get(f"{door.url}/invocations").status_code == 405


def broken(archive: bytes) -> bytes:
    """Returns an archive that cannot load."""
    return archive.replace(b"classifier_entry", b"classifier_entrx")


def test_each_of_two_reloads_learns_the_outcome_of_its_own(
    door: FrontProcess, model_store: Path, tmp_path: Path
) -> None:
    """The second is asked for while the first is under way, and cannot succeed."""
    good = build(tmp_path, "near-free", "near-free", top_k=2).read_bytes()
    archive = model_store / "near-free.mar"
    old = door.children("java")
    with door.load(PATH, BODIES, pause_s=PAUSE_S) as seen:
        with replaced(archive, good):
            first = begin_reload(door)
        with replaced(archive, broken(good)):
            second = door.begin_reload()
            assert first.wait(MOST_S) == 0
            # The load holds connections that were made before.
            labels = [count_labels(door) for _ in range(40)]
            assert second.wait(MOST_S) == 1
    assert labels == [2] * 40
    assert second.stderr is not None
    assert "the old server continues" in second.stderr.read()
    assert set(seen.statuses) == {200} and not seen.broken and not seen.refused
    eventually(lambda: len(door.children("java")) == 1)
    assert door.children("java") != old


# The last test of the door that all tests before it share.
def test_sigterm_answers_what_was_accepted_and_the_log_has_it_once(
    door: FrontProcess, folder: Path
) -> None:
    send_hostile_user_ids(f"{door.url}{PATH}", jpeg())
    with door.load(PATH, BODIES) as seen:
        answer_some(seen)
        assert door.terminate() == 0
    seen.check_end()
    assert not door.bodies.exists() and not door.run.exists()
    check_no_reload(door)
    check_hostile_user_ids(folder)
    for private in (door.log_dir, *(folder / "log").glob("dt=*/*/*")):
        assert private.stat().st_mode & 0o7 == 0, "every user can read it"


def check_no_reload(door: FrontProcess) -> None:
    """Checks that `offpath reload` finds that the door has ended."""
    done = door.reload()
    assert done.returncode == 1 and not done.stdout
    assert "no `offpath serve --front` runs" in done.stderr


@pytest.fixture(scope="module")
def changing(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    """A door that begins with Granian."""
    folder = tmp_path_factory.mktemp("changing")
    with logged(front, model_store, folder, "near-free", "--server", "granian") as running:
        yield running


def test_reload_replaces_granian_by_torchserve_and_loses_no_request(changing: FrontProcess) -> None:
    with changing.load(PATH, BODIES, clients=4, pause_s=PAUSE_S) as seen:
        answer_some(seen)
        done = changing.reload("--server", "torchserve")
        assert done.returncode == 0, done.stderr
        assert changing.is_healthy()
        # TorchServe's workers are counted, and nothing is left of Granian's.
        eventually(lambda: count_models(changing) == 1)
        answer_some(seen)
    assert set(seen.statuses) == {200} and not seen.failed, seen
    assert changing.children("java")


def count_models(door: FrontProcess) -> int:
    """Counts the models whose workers /metrics counts."""
    page = httpx.get(door.metrics_url, trust_env=False).text
    return page.count("\noffpath_workers_ready{")


def test_sigkill_of_the_command_leaves_no_process_no_folder_and_nobody_to_reload(
    changing: FrontProcess,
) -> None:
    with changing.load(PATH, BODIES) as seen:
        answer_some(seen)
        pids = processes(changing)
        kill(changing.process.pid)
        changing.process.wait()
        eventually(lambda: not any(map(is_alive, pids)))
    eventually(lambda: not changing.run.exists() and not changing.bodies.exists())
    # The kernel may give the killed door's process id to a stranger.
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        for file in changing.log_dir.glob("*.json"):
            text = file.read_text()
            file.write_text(text.replace(str(changing.process.pid), str(stranger.pid)))
        check_no_reload(changing)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
