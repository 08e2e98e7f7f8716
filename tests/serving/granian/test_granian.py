"""A real Granian behind its front door: answers, failures of workers, reload and drain."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from offpath.errors import WrongOption
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.check.running import check_server
from offpath.serving.granian.worker import choose_gpu
from offpath.serving.server.management import open_http
from offpath.serving.server.plan import MAX_WORKERS, plan_server
from offpath.serving.server.served_model import ServedModel
from tests.guarantees import guarantee
from tests.serving.contract.hostile_clients import slow_upload
from tests.serving.ends import check_no_reload, last_load
from tests.serving.processes import is_alive
from tests.serving.scrape import read_lines
from tests.support.echo_archive import MakeMar, make_settings
from tests.support.eventually import MAX_S, eventually
from tests.support.front import PAUSE_S, FrontProcess, granian, logged
from tests.support.hostile_archives import HOSTILE
from tests.support.images import jpeg
from tests.support.obedient_model import (
    BATCH,
    BREAK,
    FOR_EVER,
    HANG,
    POISON,
    WORKERS,
    Flag,
    build_obedient,
)
from tests.support.photographs import encode

pytestmark = pytest.mark.server
WHY = (
    r"\(model (tricky|another|limited) [12]\.0\) cannot be loaded: "
    "ValueError: the weights are of another"
)
CLIENTS = 8


@pytest.fixture
def door(granian_door: FrontProcess) -> FrontProcess:
    return granian_door


def read_metrics(door: FrontProcess, label: str = "") -> dict[str, float]:
    """Returns the sum of each metric over its labels, of the lines with `label` in one of them."""
    sums: dict[str, float] = {}
    for name, labels, value in read_lines(door.metrics_url):
        if label in " ".join(labels.values()):
            sums[name] = sums.get(name, 0.0) + value
    return sums


@guarantee(
    "A worker is killed",
    "handler/classifier.py",
    "                self._log.append(records)",
    ("                __import__('threading').Timer(1, self._log.append, " "[records]).start()"),
)
def test_a_killed_worker_costs_its_requests_at_most_and_is_replaced(
    door: FrontProcess, flag: Flag
) -> None:
    before = read_metrics(door)["offpath_worker_starts_total"]
    path = "/predictions/tricky/1.0"
    with door.load(path, [jpeg()], clients=CLIENTS, pause_s=PAUSE_S) as seen:
        eventually(lambda: len(seen.answered) > 50)
        workers = list_workers(door, "tricky/1.0")
        flag.hold()
        killed = flag.find_holder()
        (other,) = workers - {killed}
        # The same worker twice, which pauses before its third start, then at once the other one.
        kill_and_wait(door, killed)
        (killed,) = list_workers(door, "tricky/1.0") - {other}
        kill_and_wait(door, killed)
        kill_and_wait(door, other)
        count = len(seen.answered)
        eventually(lambda: len(seen.answered) > count + 50)
    assert not seen.broken and set(seen.statuses) <= {200, 500, 503}, seen
    # What each worker had when it died. The other worker answers all else.
    assert 0 < seen.statuses[500] + seen.statuses[503] <= 3 * CLIENTS, seen
    assert seen.statuses[500] <= 3 * BATCH, seen
    starts = before + 3
    eventually(lambda: read_metrics(door)["offpath_worker_starts_total"] >= starts)
    assert "ended by SIGKILL" in door.errors()


def kill_and_wait(door: FrontProcess, worker: int) -> None:
    """Kills a worker, and waits until the next one is READY."""
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: worker not in door.python_workers())
    eventually(lambda: not is_short(door))


def list_workers(door: FrontProcess, model: str) -> set[int]:
    """Returns the READY workers of NAME/VERSION."""
    return {worker["pid"] for one in manage(door, f"models/{model}") for worker in one["workers"]}


def is_short(door: FrontProcess) -> bool:
    """Tells whether a worker is missing or not READY."""
    names = [one["modelName"] for one in manage(door, "models")["models"]]
    models = [one for name in names for one in manage(door, f"models/{name}/all")]
    # A worker that has just ended may still be listed.
    listed = {worker["pid"] for model in models for worker in model["workers"]}
    wanted = sum(model["minWorkers"] for model in models)
    return len(listed) < wanted or listed != set(door.python_workers())


def manage(door: FrontProcess, path: str) -> Any:
    """Asks the management API."""
    with open_http(f"unix:{door.run}/management.sock") as http:
        return http.get(f"/{path}").json()


@guarantee(
    "A worker dies of an image",
    "serving/conf/nginx.conf",
    "if (-x $request_body_file) {",
    "if (-d $request_body_file) {",
)
def test_only_what_was_in_the_dying_batch_gets_500(door: FrontProcess, flag: Flag) -> None:
    """Retries repeat 503, and would end a second worker."""
    url = f"{door.url}/predictions/tricky/2.0"  # which has one worker
    flag.hold()
    with ThreadPoolExecutor(CLIENTS) as pool:
        first = pool.submit(httpx.post, url, content=jpeg(), timeout=MAX_S)
        killed = flag.find_holder()
        others = [pool.submit(httpx.post, url, content=jpeg(), timeout=MAX_S) for _ in range(4)]
        eventually(lambda: len(list(door.bodies.iterdir())) == 5)
        os.kill(killed, signal.SIGSEGV)
        inside, waiting = first.result(), [one.result() for one in others]
    assert (inside.status_code, inside.json()["type"]) == (500, "WorkerDied")
    # Those that had not reached the worker waited for the next one.
    assert {one.status_code for one in waiting} <= {200, 503}, waiting
    said = f"worked on {inside.headers['x-request-id']} of 127.0.0.1"
    eventually(lambda: said in door.errors())
    eventually(lambda: not is_short(door))


@guarantee(
    "A worker dies of an image",
    "serving/granian/suspects.py",
    "if sha256 == refused",
    "if sha256 is refused",
)
def test_an_image_that_ends_workers_is_refused_after_the_third_and_costs_others_little(
    door: FrontProcess, flag: Flag
) -> None:
    path = "/predictions/tricky"
    url = door.url + path

    def count_deaths() -> float:
        return read_metrics(door, "by SIGSEGV").get("offpath_worker_ends_total", 0)

    def send_until_refused(**request: Any) -> list[int]:
        deaths, statuses = count_deaths(), []
        while len(statuses) < 10 and 422 not in statuses:
            reply = httpx.post(url, **request)
            statuses.append(reply.status_code)
            # The supervisor has noted the death, so that all workers know of it.
            eventually(lambda: count_deaths() == deaths + statuses.count(500))
            eventually(lambda: not is_short(door))
        assert reply.json()["type"] == "EndsWorkers"
        return statuses

    bodies = [encode(Image.new("RGB", (300, side), "white"), "PNG") for side in (300, 301)]
    with door.load(path, [jpeg()], clients=CLIENTS, pause_s=PAUSE_S) as seen:
        eventually(lambda: len(seen.answered) > 20)
        with flag.standing(POISON):
            first = send_until_refused(content=bodies[0])
            # The boundary of a form is random.
            form = {"data": ("a.png", bodies[0])}
            second = send_until_refused(files=form)
        assert httpx.post(url, content=bodies[1]).status_code == 200
        count = len(seen.answered)
        eventually(lambda: len(seen.answered) > count + 50)
    assert first == second == [500, 500, 500, 422]
    # The image was alone when it ended the third worker.
    assert not seen.broken and seen.statuses[500] < 2 * 2 * BATCH, seen
    assert seen.statuses[503] <= 2 * 3 * CLIENTS, seen
    # A worker that dies takes the counts of its last second with it.
    eventually(lambda: read_metrics(door)["offpath_refused_images_total"] >= 1)


@pytest.mark.parametrize(
    ("code", "model", "why"),
    [
        pytest.param(HANG, "limited", "a batch has been running for", id="hangs"),
        pytest.param(BREAK, "tricky", "CUDA error", id="is-broken"),
    ],
)
def test_a_worker_that_hangs_or_has_a_broken_model_answers_503_and_is_replaced(
    door: FrontProcess, flag: Flag, code: str, model: str, why: str
) -> None:
    sick = read_metrics(door).get("offpath_sick_workers_total", 0)
    path = f"/predictions/{model}"
    with door.load(path, [jpeg()], clients=CLIENTS, pause_s=PAUSE_S) as seen:
        eventually(lambda: len(seen.answered) > 20)
        workers = list_workers(door, model)
        flag.order(code, FOR_EVER)
        eventually(lambda: workers - set(door.python_workers()))
        eventually(lambda: not is_short(door))
        count = len(seen.answered)
        eventually(lambda: len(seen.answered) > count + 20)
    assert not seen.broken and set(seen.statuses) <= {200, 503}, seen
    # While a worker hangs, those that came after its batch wait for it too.
    assert 0 < seen.statuses[503] <= CLIENTS + BATCH, seen
    assert re.search(f"this worker must be replaced: .*{why}", door.errors())
    if code == BREAK:
        eventually(lambda: read_metrics(door)["offpath_sick_workers_total"] > sick)
        management = f"unix:{(door.run / 'management.sock').resolve()}"
        found = {one.subject: one for one in check_server(management)}
        assert found["broken models"].cure.startswith("granian.log says why")


@guarantee(
    "All workers of a model die",
    "serving/front/readiness.py",
    "self._door.set_ready(versions.items() <= ready and not self._is_sick())",
    "self._door.set_ready(not self._is_sick())",
)
@guarantee("Workers are stopped")
def test_stopped_workers_are_not_ready_and_are_replaced(door: FrontProcess) -> None:
    def count_ends() -> float:
        return read_metrics(door, "because it took too long").get("offpath_worker_ends_total", 0)

    # Version 2.0, which goes on, gets none of the requests to `tricky`.
    ends, stopped = count_ends(), list_workers(door, "tricky/1.0")
    for worker in stopped:
        os.kill(worker, signal.SIGSTOP)
    eventually(lambda: not door.is_healthy())
    eventually(lambda: list_workers(door, "tricky/1.0").isdisjoint(stopped) and not is_short(door))
    eventually(door.is_healthy)
    assert count_ends() == ends + len(stopped)
    with door.load("/predictions/tricky", [jpeg()], clients=2) as seen:
        eventually(lambda: len(seen.answered) > 20)
    assert set(seen.statuses) == {200}, seen


@guarantee("Logs that fill the disk or forge lines")
def test_a_model_that_fails_writes_a_line_a_second_into_a_log_with_a_bound(
    door: FrontProcess, flag: Flag
) -> None:
    log = max(door.log_dir.glob("granian-*/granian.log"), key=lambda path: path.stat().st_mtime)
    assert "TensorRT" not in log.read_text()  # nor another line about packages that nobody needs
    with open(log, "ab") as file:
        file.truncate(21 << 20)
    eventually(log.with_name("granian.log.1").exists)
    eventually(lambda: log.stat().st_size < 1 << 20)
    url = f"{door.url}/predictions/tricky/2.0"  # which has one worker
    flag.order("raise ValueError('it failed again')", 4)  # a fifth would replace the worker
    began_s = time.monotonic()
    assert [httpx.post(url, content=jpeg()).status_code for _ in range(5)] == [503] * 4 + [200]
    lines = log.read_text().count("the model failed on a batch")
    assert 1 <= lines <= 1 + time.monotonic() - began_s
    assert "it failed again" in log.read_text()


@pytest.fixture(scope="module")
def changing(
    granian_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """A door of its own, whose models and server change and which is killed."""
    folder = tmp_path_factory.mktemp("changing")
    for name in ("tricky", "tricky2"):
        shutil.copy(granian_store / f"{name}.mar", folder)
    with logged(granian, folder, folder) as door:
        yield door


@guarantee(
    "A reload",
    "serving/rotation.py",
    "return age_s > self.drain_s or (age_s > SETTLE_S and self._is_left())",
    "return True",
)
@guarantee("Hostile archives and YAML")
def test_a_reload_loses_nothing_and_one_that_cannot_load_changes_nothing(
    changing: FrontProcess, tmp_path: Path, flag: Flag
) -> None:
    """The second is asked for while the first is under way; it and the third cannot succeed."""
    door, store, path = changing, changing.log_dir.parent, "/predictions/tricky"
    dead = Flag(tmp_path / "flag")
    broken = build_obedient(tmp_path, dead)
    dead.file(".dead").touch()
    with door.load(path, [jpeg()], clients=4, pause_s=PAUSE_S) as seen:
        eventually(lambda: len(seen.answered) > 20)
        workers = set(door.python_workers())
        # Other models, so that this one's workers get other numbers.
        (store / "tricky2.mar").unlink()
        build_obedient(store, flag, "another", workers=1)
        with slow_upload(door.url + path, jpeg()) as upload:
            door.process.send_signal(signal.SIGHUP)
            eventually(lambda: bool(set(door.python_workers()) - workers))
            broken.replace(store / broken.name)
            failing = door.begin_reload()
            eventually(lambda: "reloaded; a new Granian serves" in door.errors())
        assert upload.result() == 200
        eventually(lambda: workers.isdisjoint(door.python_workers()))
        assert failing.wait(MAX_S) == 1
        assert re.search(WHY, failing.stderr.read())
        HOSTILE["member-above"](store / broken.name)
        refused = door.reload()
        assert refused.returncode == 1 and "tricky.mar" in refused.stderr
        eventually(lambda: len(door.supervisors()) == 1)
        assert len(door.python_workers()) == 1 + WORKERS
    assert set(seen.statuses) == {200} and not seen.failed, seen
    gone = httpx.post(f"{door.url}{path}/2.0", content=jpeg())
    assert gone.status_code == 404


@guarantee("A reload")
def test_a_reload_replaces_granian_by_torchserve_and_loses_no_request(
    changing: FrontProcess, tmp_path: Path, flag: Flag
) -> None:
    build_obedient(changing.log_dir.parent, flag)
    with changing.load("/predictions/tricky", [jpeg()], clients=4, pause_s=PAUSE_S) as seen:
        eventually(lambda: len(seen.answered) > 20)
        done = changing.reload("--server", "torchserve")
        assert done.returncode == 0, done.stderr
        assert changing.is_healthy()
        # TorchServe's workers are counted, and nothing is left of Granian's.
        eventually(lambda: count_models(changing) == 2)
        count = len(seen.answered)
        eventually(lambda: len(seen.answered) > count + 20)
    assert set(seen.statuses) == {200} and not seen.failed, seen
    assert changing.children("java")


def count_models(door: FrontProcess) -> int:
    """Counts the models whose workers /metrics counts."""
    page = httpx.get(door.metrics_url, trust_env=False).text
    return page.count("\noffpath_workers_ready{")


@guarantee("Processes that outlive their server")
@guarantee("`offpath serve` is killed")
def test_sigkill_of_the_command_leaves_no_process_no_folder_and_nobody_to_reload(
    changing: FrontProcess,
) -> None:
    with changing.load("/predictions/tricky", [jpeg()]) as seen:
        eventually(lambda: len(seen.answered) > 20)
        pids = changing.processes()
        changing.kill()
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


def test_more_workers_than_one_message_can_describe_are_refused(make_mar: MakeMar) -> None:
    workers = dict.fromkeys(("minWorkers", "maxWorkers"), MAX_WORKERS + 1)
    with pytest.raises(WrongOption, match=f"at most {MAX_WORKERS}"):
        plan_server(make_settings(make_mar(config=workers), server="granian"))


@pytest.mark.parametrize(
    ("ids", "numbers", "count", "gpus"),
    [
        pytest.param([], [4, 5, 6], 2, [0, 1, 0], id="in-turn"),
        pytest.param([2, 0], [4, 5, 6], 3, [2, 0, 2], id="those-of-the-archive"),
        pytest.param([2, 0], [4, 5], 2, [0, 1], id="one-is-not-there"),
        pytest.param([0], [4], 0, [None], id="no-gpu"),
    ],
)
def test_workers_take_gpus_as_torchserves_do(
    monkeypatch: pytest.MonkeyPatch,
    ids: list[int],
    numbers: list[int],
    count: int,
    gpus: list[int | None],
) -> None:
    """`addThreads` of TorchServe's WorkLoadManager.java, for a model whose first slot is 4."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    settings = ServingSettings(device_type="gpu", device_ids=tuple(ids))
    model = ServedModel("a", "1.0", "", settings, 4, True)
    assert [choose_gpu(model, number) for number in numbers] == gpus
    assert (
        choose_gpu(replace(model, settings=replace(settings, device_type="cpu")), numbers[0])
        is None
    )


# The last test of the door, which it ends.
@guarantee(
    "SIGTERM",
    "handler/classifier.py",
    "                self._log.append(records)",
    ("                __import__('threading').Timer(1, self._log.append, " "[records]).start()"),
)
def test_sigterm_answers_what_is_in_flight_and_every_answer_is_in_the_log_once(
    door: FrontProcess,
) -> None:
    with last_load(door, "/predictions/tricky", [jpeg()]) as seen:
        eventually(lambda: len(seen.answered) > 50)
        assert door.terminate() == 0
