"""Twenty rounds of kills, reloads and stops of the front door, and slow and random clients."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.conftest import build
from tests.fuzz.seeds import Change, change, make_seeds
from tests.support.costly import progressive_jpeg
from tests.support.door_rounds import (
    BODIES,
    KILLS,
    PATH,
    answer_some,
    begin_reload,
    count_labels,
    replaced,
    run_kill_round,
)
from tests.support.front import FrontProcess, logged
from tests.support.granian import FRONTS, RunFront
from tests.support.guarantees import guarantee
from tests.support.hostile_clients import LARGE, connect, head_of, send_randoms

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("OFFPATH_FRONT_ROUNDS", "20"))
RANDOM_REQUESTS = int(os.environ.get("OFFPATH_RANDOM_REQUESTS", "10000"))
MUTATED_FILES = int(os.environ.get("OFFPATH_MUTATED_FILES", "10000"))
# More than can wait in TorchServe.
CROWD = 300


@pytest.fixture(params=FRONTS)
def run(request: pytest.FixtureRequest) -> RunFront:
    """Returns the function that starts a front door before one of the servers."""
    return FRONTS[request.param]


@pytest.fixture
def door(run: RunFront, model_store: Path, tmp_path: Path) -> Iterator[FrontProcess]:
    with logged(run, model_store, tmp_path, "near-free") as running:
        yield running


@guarantee("A worker is killed")
@guarantee("The server is killed")
@guarantee("nginx or its worker is killed")
def test_twenty_kills_lose_no_record_and_leave_no_file(door: FrontProcess) -> None:
    """When the door ends, the log is compared with its ledger."""
    statuses: Counter[int] = Counter()
    broken: Counter[str] = Counter()
    for number in range(ROUNDS):
        seen = run_kill_round(door, KILLS[number % len(KILLS)])
        statuses += seen.statuses
        broken += seen.broken
    print(
        f"\n{ROUNDS} kills ({ROUNDS // len(KILLS)} each of {[k.__name__ for k in KILLS]}): "
        f"{len(door.ledger)} answered, no file left; "
        f"statuses {dict(statuses)}, {broken.total()} connections broken"
    )


@guarantee("A reload")
def test_twenty_pairs_of_reloads_lose_no_request_and_tell_the_truth(
    door: FrontProcess, model_store: Path, tmp_path: Path
) -> None:
    """Each archive answers with another number of labels, every second has another version."""
    archive = model_store / "near-free.mar"
    name, versions = "near-free", {}
    for top_k, version in ((1, "1.0"), (2, "1.0"), (3, "2.0"), (4, "2.0")):
        built = build(tmp_path, name, name, version, top_k=top_k)
        versions[top_k] = built.read_bytes()
    took = []
    with door.load(PATH, BODIES, pause_s=0.02) as seen, ExitStack() as store:
        for number in range(ROUNDS):
            start = time.monotonic()
            first, second = (1, 2) if number % 2 else (3, 4)
            store.enter_context(replaced(archive, versions[first]))
            reloads = {first: begin_reload(door)}
            store.enter_context(replaced(archive, versions[second]))
            reloads[second] = door.begin_reload()
            for version, reload in reloads.items():
                assert reload.wait(240) == 0
                newest = {count_labels(door) for _ in range(40)}
                # The second reload may end while these requests are answered.
                assert newest <= {version, second}, number
            took.append(time.monotonic() - start)
            answer_some(seen)
    print(f"\n{ROUNDS} pairs, {sorted(took)[ROUNDS // 2]:.1f} s each: {seen}")
    assert set(seen.statuses) == {200} and not seen.broken and not seen.refused


@guarantee("SIGTERM")
def test_twenty_ends_answer_what_was_accepted(
    run: RunFront, model_store: Path, tmp_path: Path
) -> None:
    statuses: Counter[int] = Counter()
    broken: Counter[str] = Counter()
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with logged(run, model_store, folder, "near-free") as door:
            with door.load(PATH, BODIES, clients=16) as seen:
                answer_some(seen)
                assert door.terminate() == 0
        seen.check_end()
        statuses += seen.statuses
        broken += seen.broken
    print(f"\n{ROUNDS} times SIGTERM: {dict(statuses)}, broken {dict(broken)}")


def measure_ms(door: FrontProcess, requests: int) -> list[float]:
    """Returns the sorted latencies of a client that sends one image after the other."""
    took = []
    with httpx.Client(base_url=door.url, trust_env=False, timeout=60) as http:
        for _ in range(requests):
            start = time.perf_counter()
            assert http.post(PATH, content=LARGE).status_code == 200
            took.append((time.perf_counter() - start) * 1e3)
    return sorted(took)


@guarantee("Slow clients, half bodies, crowds")
@guarantee("Slow clients")
def test_a_good_client_beside_200_slow_ones(door: FrontProcess) -> None:
    measure_ms(door, 30)
    alone = measure_ms(door, 400)
    with ExitStack() as stack:
        for number in range(200):
            slow = stack.enter_context(connect(door))
            # Half of them within a body, half within a header.
            half = head_of(len(LARGE)) + LARGE[: 1000 * number]
            slow.sendall(half if number % 2 else b"POST")
        beside = measure_ms(door, 400)
        with contextlib.suppress(ConnectionResetError):
            # The last is let go as the others are: nobody waits for ever.
            assert slow.recv(1000) == b""
    for name, ms in (("alone", alone), ("beside 200 slow clients", beside)):
        print(f"\n{name}: p50 {ms[200]:.1f}, p99 {ms[396]:.1f} ms", end="")
    assert beside[396] <= 2 * alone[396]


@guarantee("Bytes that cause a 5xx or end a worker")
def test_ten_thousand_random_requests_cause_no_5xx(door: FrontProcess) -> None:
    statuses = send_randoms(door, RANDOM_REQUESTS)
    print(f"\n{RANDOM_REQUESTS} random requests: {sorted(statuses, key=str)}")
    assert not {s for s in statuses if s and s >= 500}


def mutate(body: bytes, chance: random.Random) -> bytes:
    """Changes some bytes, most of them near the beginning, where a file says what it is."""
    changes = []
    for _ in range(chance.randint(1, 8)):
        new = bytes(chance.choices((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)), k=4))
        changes.append(Change(chance.random(), new, chance.choice((0, 4))))
    return change(body, changes)


@guarantee("Bytes that cause a 5xx or end a worker")
def test_mutated_files_cause_no_5xx_and_kill_nobody(door: FrontProcess) -> None:
    """Sends mutated files of every format through the whole server."""
    seeds, workers = make_seeds(), door.python_workers()

    def post(number: int) -> int:
        body = mutate(seeds[number % len(seeds)], random.Random(number))
        return clients[number % len(clients)].post(PATH, content=body).status_code

    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=door.url, trust_env=False, timeout=60))
            for _ in range(8)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        statuses = Counter(pool.map(post, range(MUTATED_FILES)))
    print(f"\n{MUTATED_FILES} mutated files of {len(seeds)}: {dict(statuses)}")
    assert not {status for status in statuses if status >= 500}
    assert door.python_workers() == workers


@guarantee("Slow clients, half bodies, crowds")
@guarantee("More requests than the queue holds")
def test_what_the_queue_cannot_hold_is_told_to_come_again(
    run: RunFront, model_store: Path, tmp_path: Path
) -> None:
    slow = progressive_jpeg(1000, 60)  # 20 kB every tenth of a second
    # The smallest queue, job_queue_size of config.properties, and more.
    with run(model_store, tmp_path / "logs", "near-free", "--limit", "queue=1") as door:

        def post(_: int) -> httpx.Response:
            url = door.url + PATH
            return httpx.post(url, content=slow, trust_env=False, timeout=60)

        with ThreadPoolExecutor(CROWD) as pool:
            answers = list(pool.map(post, range(CROWD)))
    refused = [answer for answer in answers if answer.status_code != 200]
    print(f"\n{CROWD} at a time: {len(refused)} refused")
    assert {answer.status_code for answer in refused} == {503}
    assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert {answer.json()["type"] for answer in refused} == {"ServiceUnavailable"}
