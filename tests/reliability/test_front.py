"""Twenty rounds of kills and reloads of the front door."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import build
from tests.guarantees import guarantee
from tests.support.eventually import eventually
from tests.support.front import (
    BODIES,
    FRONTS,
    PARTS,
    PATH,
    FrontProcess,
    answer_some,
    logged,
    run_kill_round,
)

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("OFFPATH_FRONT_ROUNDS", "20"))


@pytest.fixture(params=FRONTS)
def door(
    request: pytest.FixtureRequest, model_store: Path, tmp_path: Path
) -> Iterator[FrontProcess]:
    with logged(FRONTS[request.param], model_store, tmp_path, "near-free") as running:
        yield running


@guarantee("A worker is killed")
@guarantee("The server is killed")
@guarantee("nginx or its worker is killed")
def test_twenty_kills_lose_no_record_and_leave_no_file(door: FrontProcess) -> None:
    """When the door ends, the log is compared with its ledger."""
    statuses: Counter[int] = Counter()
    broken: Counter[str] = Counter()
    for number in range(ROUNDS):
        seen = run_kill_round(door, [*PARTS][number % len(PARTS)])
        statuses += seen.statuses
        broken += seen.broken
    print(
        f"\n{ROUNDS} kills ({ROUNDS // len(PARTS)} each of {[*PARTS]}): "
        f"{len(door.ledger)} answered, no file left; "
        f"statuses {dict(statuses)}, {broken.total()} connections broken"
    )


@contextmanager
def replaced(archive: Path, content: bytes) -> Iterator[None]:
    """Puts another archive in an archive's place for a while."""
    good = archive.read_bytes()
    try:
        # Another file: TorchServe reads the one it has open no more.
        archive.unlink()
        archive.write_bytes(content)
        yield
    finally:
        archive.unlink()
        archive.write_bytes(good)


def count_labels(door: FrontProcess) -> int:
    """Returns the number of labels in an answer; archives here differ in it."""
    reply = httpx.post(door.url + PATH, content=BODIES[0], timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    return len(reply.json())


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
            old = set(door.python_workers())
            reloads = {first: door.begin_reload()}
            eventually(lambda: set(door.python_workers()) - old)  # it has read the archives
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
