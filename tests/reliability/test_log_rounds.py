"""Workers and servers killed under load: every answered request is in the bucket once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest

from offpath.profiling.servers import archives
from offpath.serving.process.processes import find_family
from offpath.serving.session import start_server
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.reliability.logged_server import WORKERS, LogTrial, predict_url
from tests.support.eventually import eventually
from tests.support.front import Seen, load
from tests.support.guarantees import guarantee

ROUNDS = int(os.environ.get("OFFPATH_KILL_ROUNDS", "20"))
CLIENTS = 16
KILL_WORKER, KILL_SERVER, SCALE = (
    "kill a worker",
    "kill the server",
    "scale down and up",
)
# Granian has no call that scales its workers.
EVENTS = {
    "torchserve": (KILL_WORKER, KILL_SERVER, SCALE),
    "granian": (KILL_WORKER, KILL_SERVER),
}

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 * ROUNDS + 300)]


@guarantee("A worker is killed")
@pytest.mark.parametrize("product", EVENTS)
def test_every_answered_request_has_one_record_whatever_is_killed(
    trial: LogTrial, photographs: list[bytes], product: str
) -> None:
    draw = random.Random(0)
    events = EVENTS[product]
    kinds = [events[number % len(events)] for number in range(ROUNDS)]
    draw.shuffle(kinds)
    server = trial.start_server("logs", product)
    seen = Seen()
    try:
        server.wait_until_ready()
        for number, kind in enumerate(kinds, start=1):
            if not server.is_running():
                server = start_server(server.settings)
                server.wait_until_ready()
            eventually(lambda: has_all_workers(server))
            with load(predict_url(server), photographs, CLIENTS) as some:
                time.sleep(draw.uniform(0.5, 3.0))
                strike(server, kind, draw)
                time.sleep(draw.uniform(0.0, 1.0))
            if kind == KILL_SERVER:
                # This process removes the temporary files that SIGKILL leaves behind.
                server.stop()
            seen += some
            print(f"\nround {number}/{ROUNDS}: {kind}; {len(some.replies)} answered", end="")
    finally:
        server.stop()
    trial.ship()
    verdict = trial.judge(seen)
    print(
        f"\n{product}, {dict(Counter(kinds))}: {verdict.asked:,} requests answered,"
        f" {seen.failed:,} not; {verdict.records:,} records,"
        f" {len(verdict.missing)} lost, {len(verdict.double)} double"
    )
    assert (verdict.missing, verdict.double) == ([], [])
    assert verdict.asked > 10 * ROUNDS


def strike(server: TorchServe, kind: str, draw: random.Random) -> None:
    if kind == KILL_WORKER:
        os.kill(draw.choice(server.worker_pids()), signal.SIGKILL)
    elif kind == KILL_SERVER:
        # Kills Java or the supervisor and all workers at once, like the loss of a node.
        for process in find_family(server.pid):
            process.kill()
    else:
        with server.management() as management:
            management.scale(archives.NAME, 0)
            management.scale(archives.NAME, WORKERS)


def has_all_workers(server: TorchServe) -> bool:
    """Tells whether all workers are READY.

    `wait_until_ready` is for a start: it would treat a killed worker as a failed load.
    """
    with server.management() as management:
        (status,) = management.describe(archives.NAME)
    return status.ready_workers == WORKERS == len(server.worker_pids())
