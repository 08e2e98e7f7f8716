"""S3 taken away under load: no request fails or slows, and everything arrives in the end."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.log_clients import Answers
from offpath.profiling.experiments.log_trials.setup import (
    BUCKET,
    Say,
    build_archive,
    make_environ,
    read_event_ids,
    send_for,
    serve,
)
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.s3_faults import OUTAGES, PASS, FaultProxy
from offpath.profiling.servers.s3_servers import S3Server, run_seaweedfs
from offpath.serving.log_reading import compare

DRAIN_TIMEOUT_S = 120.0
WARM_UP_S = 8.0


@dataclass(frozen=True)
class OutageResult:
    """An outage under load.

    Attributes:
        failed: Requests without a 200 while the log was on.
        p99_ms: (log off, log on) by stage; the stage `pass` is the control.
        ratio_p99: On to off, over the stages of the outage.
        answered, lost, double: Of the log that was on, after recovery.
        recovery_s: From the end of the outage until the last record had arrived.
    """

    failed: int
    p99_ms: dict[str, tuple[float, float]]
    ratio_p99: float
    answered: int
    lost: list[str]
    double: list[str]
    recovery_s: float


def run_outage(
    stage_s: float, clients: int, workers: int, turns: int, say: Say
) -> OutageResult:
    """Four kinds of outage in a row under load, taking turns with a server whose log is off."""
    bodies = load_workload("photos-55k").read()
    off, on, checked = Answers(), Answers(), Answers()
    by_stage: dict[str, tuple[float, float]] = {}
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(run_seaweedfs())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3.client().create_bucket(Bucket=BUCKET)
        proxy = stack.enter_context(FaultProxy(s3.endpoint_url))
        archive = build_archive(folder / "store", workers, proxy.endpoint_url)
        environ = make_environ(s3, folder / "spool")
        is_off = {**environ, "OFFPATH_PREDICTION_LOG": "off"}
        _, off_url = stack.enter_context(serve(folder / "off", archive, is_off))
        _, on_url = stack.enter_context(serve(folder / "on", archive, environ))
        for url in (off_url, on_url):
            send_for(url, bodies, clients, WARM_UP_S)
        # The first is the control: nothing is wrong yet.
        for stage in (PASS, *OUTAGES):
            proxy.set_mode(stage)
            stage_off, stage_on = Answers(), Answers()
            pair = [(off_url, stage_off), (on_url, stage_on)]
            for _ in range(turns):
                for url, answers in pair:
                    answers.add(send_for(url, bodies, clients, stage_s / turns))
                # Each goes first in turn, so that a drift of the machine hits neither more.
                pair.reverse()
            by_stage[stage] = (p99(stage_off), p99(stage_on))
            say(
                f"{stage}: p99 {by_stage[stage][0]:.0f} ms off, "
                f"{by_stage[stage][1]:.0f} ms on; {stage_on.failed} failed"
            )
            checked.add(stage_on)
            if stage != PASS:
                off.add(stage_off)
                on.add(stage_on)
        proxy.set_mode(PASS)
        begin_s = time.monotonic()
        _wait_for_records(s3, set(checked.request_ids))
        recovery_s = time.monotonic() - begin_s
        event_ids = read_event_ids(s3)
    verdict = compare(event_ids, set(checked.request_ids))
    return OutageResult(
        failed=checked.failed,
        p99_ms=by_stage,
        ratio_p99=p99(on) / p99(off),
        answered=len(checked.request_ids),
        lost=verdict.missing,
        double=verdict.double,
        recovery_s=recovery_s,
    )


def p99(answers: Answers) -> float:
    """99th percentile of the latencies, ms."""
    if len(answers.latencies_ms) < 2:
        raise ExpectedError("fewer than two requests were answered: nothing to compare")
    return statistics.quantiles(answers.latencies_ms, n=100)[98]


def _wait_for_records(s3: S3Server, request_ids: set[str]) -> None:
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if not request_ids - set(read_event_ids(s3)):
            return
        time.sleep(1.0)
