"""`offpath profile server` with real servers and a real load."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.cli import run
from offpath.profiling.core.run import Run, load_run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments import server_profile
from offpath.profiling.profilers.profile_report import ACCOUNT, Profiled
from offpath.serving.process.processes import find_family
from offpath.serving.torchserve.server import TorchServe
from tests.support.eventually import eventually

CHECKOUT = Path(__file__).parents[3]


def profile(*argv: str) -> str:
    """Runs the command in this process, which has imported torch, and returns what it prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed), pytest.raises(
        SystemExit
    ) as ended:
        patch.setattr(server_profile, "WARM_UP_S", 1.0)
        run(["profile", "server", *argv])
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
