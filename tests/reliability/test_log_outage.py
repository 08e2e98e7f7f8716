"""S3 taken away under load: no request fails or slows, and everything arrives in the end."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import archives
from tests.reliability.conftest import LogTrial
from tests.support.eventually import eventually
from tests.support.front import Seen, load_for
from tests.support.guarantees import guarantee
from tests.support.s3_faults import OUTAGES, PASS

STAGE_S = float(os.environ.get("OFFPATH_OUTAGE_STAGE_S", "15"))
# On and off alternate within a stage, so that a drift of the machine hits both alike.
TURNS = 4
CLIENTS = 16
WARM_UP_S = 8.0
# A request that waited for S3 would take its time-out of 10 s; noise of shared cores is smaller.
MAX_P99_RATIO = 1.5

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 * STAGE_S + 600)]


@guarantee("S3 fails")
def test_an_outage_fails_and_slows_no_request_and_loses_no_record(
    trial: LogTrial,
) -> None:
    photographs = load_workload("photos-55k").read()
    off = {stage: Seen() for stage in (PASS, *OUTAGES)}
    on = {stage: Seen() for stage in off}
    with (
        trial.start_server("off", OFFPATH_PREDICTION_LOG="off") as without,
        trial.start_server("on") as logging,
    ):
        path = f"/predictions/{archives.NAME}"
        pair = [(without.inference_url + path, off), (logging.inference_url + path, on)]
        for url, _ in pair:
            load_for(url, photographs, CLIENTS, WARM_UP_S)
        # The first stage is the control, without a fault.
        for stage in off:
            trial.proxy.set_mode(stage)
            for _ in range(TURNS):
                for url, seen in pair:
                    seconds = STAGE_S / TURNS
                    seen[stage] += load_for(url, photographs, CLIENTS, seconds)
                pair.reverse()
            p99s = f"p99 {p99(off[stage]):.0f} ms off, {p99(on[stage]):.0f} ms on"
            print(f"\n{stage}: {p99s}; {on[stage].failed} failed", end="")
        trial.proxy.set_mode(PASS)
        begin_s = time.monotonic()
        eventually(lambda: not trial.judge(join(on, *off)).missing)
        verdict = trial.judge(join(on, *off))
        recovery_s = time.monotonic() - begin_s
    ratio = p99(join(on, *OUTAGES)) / p99(join(off, *OUTAGES))
    print(
        f"\n{verdict.asked:,} requests answered, {len(verdict.missing)} lost,"
        f" {len(verdict.double)} double; p99 on/off {ratio:.3f};"
        f" everything in the bucket {recovery_s:.0f} s after"
    )
    assert join(on, *off).failed == 0
    assert (verdict.missing, verdict.double) == ([], [])
    assert ratio <= MAX_P99_RATIO


def join(seen: dict[str, Seen], *stages: str) -> Seen:
    joined = Seen()
    for stage in stages:
        joined += seen[stage]
    return joined


def p99(seen: Seen) -> float:
    """Returns the p99 of the requests answered with 200, in ms."""
    return 1e3 * float(np.percentile([one.took_s for one in seen.replies if one.status == 200], 99))
