"""A lone request's account, and the client that waits for each reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.experiments.latency import (
    DISCARDED,
    LatencyChoices,
    LoneGenerator,
    list_stages,
    run_latency,
)
from offpath.profiling.experiments.latency_report import document_of, list_parts
from offpath.profiling.experiments.on_servers import Windows
from offpath.profiling.load.plan import LoadPlan
from offpath.profiling.report.document import StackedChart, Table
from tests.profiling.experiments.quick import QuickGenerator, make_workload
from tests.profiling.quick_server import Listener
from tests.profiling.runs import make_run
from tests.support.known_server import Behaviour, run_known_server
from tests.support.silent_watcher import SilentWatcher

pytestmark = pytest.mark.timing

LONE = Cell("photos", 1)
ALONE = {"decode": 10.0, "transform": 1.0, "inference": 4.0, "log": 0.0}
SERVED = {"decode": 10.5, "transform": 1.1, "inference": 4.2, "log": 0.1}


def make_figures(latency_ms: float, stages: dict[str, float], total: float) -> Any:
    """Three requests; the last one is slow."""
    told = [stages | {"total": total}] * 3 if stages else []
    named = {f"stage_ms.{name}": v for name, v in list_stages(told).items()}
    return {"latency_ms": [latency_ms] * 2 + [3 * latency_ms], **named}


def make_latency(served_ms: float = 20.0, **archive: int) -> Run:
    """15 ms alone; ours 20 ms: 0.8 more in the worker, 0.7 beside, 2 of delay, 0.5 client."""
    run = make_run("latency")
    batches = {"batchSize": 8, "maxBatchDelay": 2, **archive}
    run.variants = {"alone": {}, "loopback": {}}
    run.variants |= {"offpath": {"archive": batches}, "triton": {}}
    for round_ in range(2):
        run.add(round_, "alone", LONE, make_figures(15.2, ALONE, 15.2))
        run.add(round_, "loopback", LONE, make_figures(0.5, {}, 0))
        ours = make_figures(served_ms, SERVED, 16.5)
        cpu = {"replies_200": 3, "cpu_s.workers": 0.06, "cpu_s.other": 0.0}
        run.add(round_, "offpath", LONE, {**ours, **cpu})
        run.add(round_, "triton", LONE, make_figures(50.0, {}, 0))
    return run


def test_the_account_adds_up_to_the_median_and_names_what_it_knows():
    parts = list_parts(Summary(make_latency()), "offpath", LONE)
    assert dict(parts) == {
        "decode, transform, forward alone": pytest.approx(15.0),
        "the same in the worker, more": pytest.approx(0.8),
        "handler, the rest": pytest.approx(0.7),
        "max batch delay": pytest.approx(2.0),
        "client and loopback": pytest.approx(0.5),
        "front end and protocol": pytest.approx(1.0),
    }
    assert sum(ms for _, ms in parts) == pytest.approx(20.0)


def test_a_server_that_tells_no_stages_has_what_the_client_saw_beyond_the_work():
    parts = list_parts(Summary(make_latency()), "triton", LONE)
    assert dict(parts) == {
        "decode, transform, forward alone": 15.0,
        "client and loopback": 0.5,
        "server": pytest.approx(34.5),
    }


@pytest.mark.parametrize(
    ("archive", "delay_ms"),
    [
        ({"maxBatchDelay": 7}, 7.0),
        pytest.param({"batchSize": 1}, 0.0, id="does-not-batch"),
    ],
)
def test_a_server_that_does_not_batch_has_no_delay(archive, delay_ms):
    parts = list_parts(Summary(make_latency(**archive)), "offpath", LONE)
    assert dict(parts)["max batch delay"] == delay_ms


@pytest.mark.parametrize(
    ("served_ms", "said"), [(20.0, "5.00, above 3"), (17.9, "2.90, within 3")]
)
def test_the_bound_counts_the_medians_difference(served_ms, said):
    section, *_ = document_of(make_latency(served_ms), None).sections
    latencies = next(part for part in section.parts if isinstance(part, Table))
    assert latencies.rows[0][-1] == said


def test_the_report_has_the_account_the_stages_and_a_chart():
    document = document_of(make_latency(), None)
    section, *_ = document.sections
    _, account, stages = [one for one in section.parts if isinstance(one, Table)]
    assert account.columns == ["", "offpath", "triton"]
    assert ["server", "", "34.50"] in account.rows
    assert ["CPU time, workers", "20.00", ""] in account.rows
    assert stages.columns == ["", "alone", "offpath"]
    assert ["decode", "10.00", "10.50"] in stages.rows
    assert ["log", "", "0.10"] in stages.rows
    (chart,) = document.headline
    assert isinstance(chart, StackedChart) and len(chart.bars) == 2


def test_stages_count_only_when_every_reply_tells_the_same():
    one, other = {"decode": 1.0, "total": 2.0}, {"decode": 3.0, "total": 4.0}
    expected = {"decode": [1.0, 3.0], "total": [2.0, 4.0], "work": [1.0, 3.0]}
    assert list_stages([one, other]) == expected
    assert list_stages([one, {}]) == {} == list_stages([])
    # A proxy's own metric is no stage of ours.
    assert list_stages([{"edge": 1.0}]) == {}


def make_plan(url: str, folder: Path, requests: int) -> LoadPlan:
    paths = []
    for name in ("one", "two"):
        paths.append(folder / name)
        paths[-1].write_bytes(name.encode())
    return LoadPlan(url, tuple(paths), 1, 0.0, None, requests)


def test_a_lone_client_waits_for_each_reply(tmp_path):
    watcher = SilentWatcher()
    with run_known_server(Behaviour((0.02,))) as known:
        lone = LoneGenerator(QuickGenerator(), pause_s=0.0)
        sample = lone.run(make_plan(known.url, tmp_path, 5), watcher)
        counts = known.counts()
    assert counts.requests == 5 + DISCARDED and watcher.windows == 1
    assert len(sample.latencies_ms) == 5 and sample.statuses == {"200": 5}
    # Not against the server's own clock, which stops a moment after the reply has left.
    assert min(sample.latencies_ms) >= 20 and sample.elapsed_s >= 0.1
    assert sample.stages_ms == {}


def test_a_reply_that_failed_is_said(tmp_path):
    with run_known_server(Behaviour(fail_every=DISCARDED + 2)) as known:
        lone = LoneGenerator(QuickGenerator(), pause_s=0.0)
        with pytest.raises(ExpectedError, match="answered 503"):
            lone.run(make_plan(known.url, tmp_path, 5), SilentWatcher())


@pytest.mark.server
def test_a_real_server_is_measured_beside_its_handler_alone(tmp_path):
    folder = make_workload(tmp_path)
    choices = LatencyChoices(
        workloads=(folder,),
        model="near-free",
        servers=("offpath",),
        clients=(1,),
        windows=Windows(None, warm_up_s=0.5, requests=8),
        rounds=2,
        command="offpath bench latency",
        side_by_side=True,
    )
    run = run_latency(choices, Listener(), lambda run: None)
    assert run.failures == [] and run.rounds == 2
    summary, cell = Summary(run), Cell(folder, 1)
    parts = dict(list_parts(summary, "offpath", cell))
    median = summary.value("offpath", cell, "latency_ms.p50")
    assert sum(parts.values()) == pytest.approx(median)
    assert parts["decode, transform, forward alone"] > 1
    # Its sign is not sure on cores that others use too.
    assert "front end and protocol" in parts
    for variant in ("alone", "offpath"):
        assert len(summary.values(variant, cell, "stage_ms.decode")) == 16
