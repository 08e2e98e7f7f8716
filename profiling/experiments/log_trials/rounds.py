"""Kills under load: every answered request is in the bucket once."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.log_clients import Answers, Clients
from offpath.profiling.experiments.log_trials.setup import (
    BUCKET,
    Say,
    build_archive,
    drain,
    make_environ,
    make_server_settings,
    predict_url,
    read_event_ids,
)
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import archives
from offpath.profiling.servers.s3_servers import run_seaweedfs
from offpath.serving.log_reading import compare
from offpath.serving.processes import find_session_members
from offpath.serving.torchserve import TorchServe

EVENTS = ("kill a worker", "kill the server", "scale down and up")
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class RoundsResult:
    """Kills survived.

    Attributes:
        rounds: By kind of event.
        answered: Requests answered 200.
        records: Records in the bucket.
        unanswered: Requests without a 200 (their worker was killed); they may have a record.
        lost, double: Request ids.
    """

    rounds: Mapping[str, int]
    answered: int
    records: int
    unanswered: int
    lost: list[str]
    double: list[str]


def run_rounds(
    rounds: int,
    clients: int,
    workers: int,
    seed: int,
    say: Say,
    events: Sequence[str] = EVENTS,
) -> RoundsResult:
    """Load, an event at a random moment, restart; at the end drain and compare."""
    draw = random.Random(seed)
    bodies = load_workload("photos-55k").read()
    answers = Answers()
    kinds = [events[number % len(events)] for number in range(rounds)]
    draw.shuffle(kinds)
    with run_seaweedfs() as s3, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        s3.client().create_bucket(Bucket=BUCKET)
        archive = build_archive(folder / "store", workers, s3.endpoint_url)
        environ = make_environ(s3, folder / "spool")
        settings = make_server_settings(folder, archive, environ)
        server = TorchServe(settings)
        try:
            for number, kind in enumerate(kinds, start=1):
                if not server.is_running():
                    server = TorchServe(settings)
                    server.start()
                    server.wait_until_ready()
                _wait_for_workers(server, workers)
                one = _run_round(server, kind, bodies, clients, workers, draw)
                answers.add(one)
                say(f"round {number}/{rounds}: {kind}; {len(one.request_ids)} answered")
        finally:
            server.stop()
        drain(s3, folder / "spool")
        event_ids = read_event_ids(s3)
    verdict = compare(event_ids, set(answers.request_ids))
    return RoundsResult(
        rounds={kind: kinds.count(kind) for kind in EVENTS},
        answered=len(answers.request_ids),
        records=verdict.records,
        unanswered=answers.failed,
        lost=verdict.missing,
        double=verdict.double,
    )


def _run_round(
    server: TorchServe,
    kind: str,
    bodies: list[bytes],
    clients: int,
    workers: int,
    draw: random.Random,
) -> Answers:
    with Clients(predict_url(server), bodies, clients) as load:
        time.sleep(draw.uniform(0.5, 3.0))
        if kind == "kill a worker":
            os.kill(draw.choice(server.worker_pids()), signal.SIGKILL)
        elif kind == "kill the server":
            _kill_tree(server)
        else:
            with server.management() as management:
                management.scale(archives.NAME, 0)
                management.scale(archives.NAME, workers)
        time.sleep(draw.uniform(0.0, 1.0))
    if kind == "kill the server":
        # What SIGKILL leaves behind (temporary files) is this process's to remove.
        server.stop()
    return load.answers


def _kill_tree(server: TorchServe) -> None:
    """SIGKILL for Java and its workers at once, as the loss of a node does."""
    for process in find_session_members(server.java_pid):
        process.kill()


def _wait_for_workers(server: TorchServe, workers: int) -> None:
    """`wait_until_ready` is for a start: it takes a worker that was killed for a failed load."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with server.management() as management:
            (status,) = management.describe(archives.NAME)
        if status.ready_workers == workers == len(server.worker_pids()):
            return
        time.sleep(0.2)
    raise ExpectedError(f"fewer than {workers} workers after {READY_TIMEOUT_S:.0f} s")
