"""`offpath profile server` with real servers and a real load."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpath import cli
from offpath.handler.serving_settings import ServingSettings
from offpath.profiling.core.run import Run, load_run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments import server_profile
from offpath.profiling.load.prometheus import parse_metrics
from offpath.profiling.profilers.profile_report import ACCOUNT, Profiled
from offpath.serving.granian.reports import Reports
from offpath.serving.process.processes import find_family
from offpath.serving.server.served_model import ServedModel
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.answering_server import answering_server
from tests.support.eventually import eventually

CHECKOUT = Path(__file__).parents[3]


def profile(*argv: str) -> str:
    """Runs the command in this process, which has imported torch, and returns what it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed), pytest.raises(
        SystemExit
    ) as ended:
        patch.setattr(server_profile, "WARM_UP_S", 1.0)
        cli.run(["profile", "server", *argv])
    assert not ended.value.code, printed.getvalue()
    return printed.getvalue()


def read_account(run: Run) -> dict[str, float]:
    """Returns the account and checks that it adds up to the clients' mean."""
    (name,) = run.variants
    server = Profiled(Summary(run), name)
    account = server.parts(ACCOUNT)
    latencies = server.values(LATENCY)
    mean_ms = sum(latencies) / len(latencies)
    assert sum(account.values()) == pytest.approx(mean_ms, rel=1e-4)
    return account


def name_server(server: TorchServe, model: str) -> list[str]:
    url = f"{server.inference_url}/predictions/{model}"
    return ["--url", url, "--metrics-url", server.metrics_url]


@pytest.mark.server
def test_the_account_of_our_handler_adds_up(server, tmp_path):
    path, page = tmp_path / "result.json", tmp_path / "page.html"
    argv = [*name_server(server, "near-free"), "--json", str(path), "--html", str(page)]
    # Workers report their counters once per second.
    out = profile(*argv, "--duration", "3", "--clients", "8")
    run = load_run(path)
    parts = {"queue", "worker protocol", "decode", "inference", "postprocess"}
    assert parts <= set(read_account(run))
    (name,) = run.variants
    profiled = Profiled(Summary(run), name)
    assert profiled.summary.failures(name, profiled.cell) == {}
    assert 1 <= profiled.value("mean_batch_size") <= 8
    assert run.details["counters"]["stages_s"]["decode"] > 0
    # The CPU time of the server's processes is not known.
    assert not [row.metric for row in run.rows if row.metric.startswith("cpu_s")]
    assert "worker protocol" in out and page.stat().st_size > 1000


def test_the_account_of_granians_page_leaves_nothing_over() -> None:
    """Granian's metrics have no types, so half of the account was missing."""
    model = ServedModel("defects", "1.0", "", ServingSettings(), 0, True)
    reports = Reports([model], "host")
    served, ours = {"model_name": "defects"}, {"ModelName": "defects"}
    values: list[tuple[str, dict[str, str], float]] = [
        ("ts_inference_requests_total", served, 10.0),
        ("ts_inference_latency_microseconds", served, 10 * 40e3),
        ("ts_queue_latency_microseconds", served, 10 * 12e3),
        ("offpath_batches_total", ours, 5.0),
        ("offpath_items_total", ours, 10.0),
        ("offpath_stage_seconds_total", {**ours, "Stage": "decode"}, 5 * 0.02),
    ]
    before = parse_metrics(reports.format_metrics())
    series = [((name, [*labels.items()], True), value) for name, labels, value in values]
    reports._take({"slot": 0, "series": series})
    after = parse_metrics(reports.format_metrics())
    counters = server_profile.read_counters(before, after, "defects")
    account = server_profile.make_account(43.0, counters)
    expected = {"client, socket and front end": 3.0, "queue": 12.0, "worker protocol": 8.0}
    expected |= {"decode": 20.0, "handler, other": 0.0, "not accounted for": 0.0}
    assert account == pytest.approx(expected)


@pytest.mark.parametrize(
    ("status", "page", "said"),
    [
        pytest.param(404, b"", "answered 404 instead of metrics", id="missing"),
        pytest.param(200, b"up 1\n", "counts no request of the model 'm'", id="another-servers"),
    ],
)
def test_metrics_that_cannot_be_used_are_found_before_the_load(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    page: bytes,
    said: str,
) -> None:
    monkeypatch.setattr(server_profile, "COUNTED_WITHIN_S", 0.0)
    with answering_server() as answers:
        answers.respond = lambda path, _: (status, page) if path == "/metrics" else (200, b"{}")
        urls = ("--url", f"{answers.url}/predictions/m", "--metrics-url", answers.url)
        with pytest.raises(SystemExit) as ended:
            cli.run(["profile", "server", *urls, "--duration", "2"])
    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 1 and said in told and "--metrics-url" in told
    assert [path for path, *_ in answers.requests].count("/predictions/m") == 1


@pytest.mark.server
def test_ctrl_c_under_load_leaves_no_generator(server):
    argv = [*name_server(server, "near-free"), "--duration", "60"]
    command = subprocess.Popen(
        [sys.executable, "-m", "offpath", "profile", "server", *argv],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Its own session, in which processes that are left can be found.
        start_new_session=True,
    )
    assert any("of load" in line for line in command.stderr)
    command.send_signal(signal.SIGINT)
    command.communicate()
    assert command.returncode == 130
    # A generator that was just starting finds no load on its stdin, and ends.
    eventually(lambda: not find_family(command.pid))
    assert server.is_running()
