"""A lone request's account, and what the bench around it asks of a server."""

from __future__ import annotations

import io
from contextlib import ExitStack

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.light import (
    LightChoices,
    LoneClient,
    adjust,
    list_delays,
    transpose,
)
from offpath.profiling.experiments.light_alone import run_alone
from offpath.profiling.experiments.light_report import print_light, write_light_page
from offpath.profiling.experiments.light_result import ALONE, LIGHT, TOTAL
from offpath.profiling.experiments.light_summary import (
    CLIENT,
    DELAY,
    FRONT_END,
    HANDLER,
    SERVER,
    WORK_ALONE,
    WORK_SLOWER,
    summarise_light,
)
from offpath.profiling.load.call import Call
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.torchserve import ARCHIVE, make_offpath, make_stock
from offpath.serving.warm_up import PHOTOGRAPH
from tests.profiling.lights import make_light
from tests.profiling.quick_server import QuickServer
from tests.support.known_server import Behaviour, run_known_server
from tests.support.pages import list_requests

pytestmark = pytest.mark.timing


def make_choices(**changes) -> LightChoices:
    values = {
        "workloads": ("photos",),
        "model": "near-free",
        "servers": ("offpath",),
        "rounds": 1,
        "requests": 2,
        "warm_up_s": 0.0,
        "pause_ms": 0.0,
        "max_batch_delay_ms": None,
        "batch_size": None,
        "seed": 0,
        "command": "offpath bench light",
    }
    return LightChoices(**(values | changes))


def test_the_account_adds_up_to_the_median_and_names_what_it_knows():
    row = summarise_light(make_light())[0]
    parts = {name: pytest.approx(ms) for name, ms in row.parts}
    assert parts == {
        WORK_ALONE: 15.0,
        WORK_SLOWER: 0.8,
        HANDLER: 0.7,
        DELAY: 2.0,
        CLIENT: 0.5,
        FRONT_END: 1.0,
    }
    assert sum(ms for _, ms in row.parts) == pytest.approx(row.p50_ms) == 20.0
    assert row.overhead_ms == pytest.approx(5.0) and not row.is_within
    assert row.cpu_ms == pytest.approx({"frontend": 1.0, "workers": 20.0})
    assert ("decode", 10.0, 10.5) in row.stages and row.p95_ms == 60.0


def test_a_server_that_tells_no_stages_has_what_the_client_saw_beyond_the_work():
    row = summarise_light(make_light())[1]
    assert row.server == "torchserve-stock" and row.stages == []
    assert dict(row.parts) == {WORK_ALONE: 15.0, CLIENT: 0.5, SERVER: 34.5}


def test_the_bound_counts_the_medians_difference():
    result = make_light()
    # A faster client's clock: 17.9 ms are 2.9 more than alone.
    for window in result.windows:
        if window.server == "offpath":
            window.latencies_ms[:] = [17.9] * 3
    assert summarise_light(result)[0].is_within


def test_a_saved_result_reads_back_and_another_file_is_refused(tmp_path):
    path = tmp_path / "light.json"
    LIGHT.save(make_light(), path)
    assert LIGHT.load(path) == make_light()
    path.write_text('{"format": "other/1"}')
    with pytest.raises(ExpectedError, match="cannot read"):
        LIGHT.load(path)


def test_the_tables_have_the_account_and_the_stages():
    text = io.StringIO()
    print_light(make_light(), Console(file=text, width=80))
    shown = text.getvalue()
    for expected in ("above 3 ms", FRONT_END, "CPU time, front end", "decode", "34.50"):
        assert expected in shown


def test_the_page_has_accounts_and_histograms_and_loads_nothing(tmp_path):
    path = tmp_path / "light.html"
    write_light_page(make_light(), path)
    page = path.read_text()
    assert FRONT_END in page and "torchserve-stock: p50" in page
    assert list_requests(page) == []


def test_a_lone_client_waits_for_each_reply():
    with ExitStack() as stack:
        known = stack.enter_context(run_known_server(Behaviour((0.02,))))
        client = stack.enter_context(FirstClient("known", known.url, Call()))
        lone = LoneClient(client, [b"one", b"two"], pause_s=0.0)
        window = lone.measure(3, "known", "photos", requests=5)
        counts = known.counts()
    assert counts.requests == 5 and len(window.latencies_ms) == 5
    # Not against the server's own clock, which stops a moment after the reply has left.
    assert min(window.latencies_ms) >= 20
    assert (window.round, window.stages_ms) == (3, {})


def test_stages_count_only_when_every_reply_tells_the_same():
    assert transpose([{"a": 1.0}, {"a": 2.0}]) == {"a": [1.0, 2.0]}
    assert transpose([{"a": 1.0}, {}]) == {} == transpose([])


def test_our_servers_batch_settings_can_be_replaced_and_others_stay():
    model = load_model("near-free")
    choices = make_choices(max_batch_delay_ms=7, batch_size=4)
    ours = adjust(make_offpath(model, 2), choices)
    assert (ours.config["maxBatchDelay"], ours.config["batchSize"]) == (7, 4)
    assert adjust(make_stock(model, 2), choices).config == {}
    quick = QuickServer("quick")
    assert adjust(quick, choices) is quick


def test_a_server_that_does_not_batch_has_no_delay():
    model = load_model("near-free")
    ours = adjust(make_offpath(model, 2), make_choices(max_batch_delay_ms=7))
    alone = adjust(ours, make_choices(batch_size=1))
    alone.name = "alone"
    servers = [ours, alone, make_stock(model, 2), QuickServer("quick")]
    assert dict(list_delays(servers)) == {
        "offpath": 7.0,
        "alone": 0.0,
        "torchserve-stock": 0.0,
    }


def test_the_handler_alone_times_its_stages_a_picture_at_a_time(tmp_path):
    offpath = make_offpath(load_model("near-free"), 1)
    offpath.prepare(tmp_path / "store")
    archive = tmp_path / "store" / ARCHIVE
    with run_alone(archive, "photos", [PHOTOGRAPH], 2, tmp_path / "alone") as alone:
        window = alone.measure(1, 4)
    assert (window.round, window.server) == (1, ALONE)
    assert len(window.latencies_ms) == 4 == len(window.stages_ms[TOTAL])
    for decode_ms, total_ms in zip(window.stages_ms["decode"], window.stages_ms[TOTAL]):
        assert 0 < decode_ms < total_ms
