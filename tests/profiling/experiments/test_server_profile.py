"""`offpath profile server` with real servers and a real load."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from offpath.cli import run
from offpath.profiling.core.run import Run, load_run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.experiments import server_profile
from offpath.profiling.experiments.server_profile import ServerChoices, open_target
from offpath.profiling.profilers.profile_report import ACCOUNT, Profiled
from offpath.serving.process.processes import find_session_members
from tests.profiling.quick_server import Listener
from tests.support.echo_archive import write_mar
from tests.support.eventually import eventually

CHECKOUT = Path(__file__).parents[3]


def start_until(said: str, *argv: str, **changes) -> subprocess.Popen[str]:
    """Starts the command as a process and waits until it prints `said`."""
    command = subprocess.Popen(
        [sys.executable, "-m", "offpath", "profile", "server", *argv],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **changes,
    )
    assert command.stderr is not None
    assert any(said in line for line in command.stderr)
    return command


def interrupt(command: subprocess.Popen[str]) -> None:
    """Sends Ctrl-C and waits for the end."""
    command.send_signal(signal.SIGINT)
    command.communicate()
    assert command.returncode == 130


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


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Profiles our handler in its own server."""
    folder = tmp_path_factory.mktemp("profile")
    out = profile(
        # Workers report their counters once per second.
        *("--duration", "5", "--clients", "16"),
        *("--json", str(folder / "result.json"), "--html", str(folder / "page.html")),
    )
    assert (folder / "page.html").stat().st_size > 1000
    return load_run(folder / "result.json"), out


def read_account(run: Run) -> dict[str, float]:
    """Returns the account and checks that it adds up to the clients' mean."""
    (name,) = run.variants
    server = Profiled(Summary(run), name)
    account = server.parts(ACCOUNT)
    latencies = server.values(LATENCY)
    mean_ms = sum(latencies) / len(latencies)
    assert sum(account.values()) == pytest.approx(mean_ms, rel=1e-4)
    return account


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """Builds an archive whose handler has no counters and no stages."""
    return write_mar(tmp_path_factory.mktemp("store"), "echo")


@pytest.fixture(scope="module")
def other_server(archive, tmp_path_factory):
    """Yields a running server that the command did not start."""
    choices = ServerChoices(1, 2, "", "", mar=archive)
    with open_target(choices, tmp_path_factory.mktemp("other"), Listener()) as target:
        yield target


def attach_options(server) -> list[str]:
    return ["--url", server.running.predict_url, "--metrics-url", server.metrics_url]


@pytest.mark.server
def test_the_account_of_a_real_server_adds_up(profiled):
    run, out = profiled
    parts = {"queue", "worker protocol", "decode", "inference", "postprocess"}
    assert parts <= set(read_account(run))
    server = Profiled(Summary(run), "offpath")
    assert server.summary.failures("offpath", server.cell) == {}
    assert 1 <= server.value("mean_batch_size") <= 8
    assert server.value("cpu_ms.workers") > 0
    assert run.details["counters"]["stages_s"]["decode"] > 0
    assert run.details["in_force"]["batch_size"] == 8
    assert "worker protocol" in out


@pytest.mark.server
def test_a_lone_request_to_a_running_server_of_another_handler_is_accounted_for(
    other_server, tmp_path
):
    path = tmp_path / "result.json"
    argv = ["--duration", "2", "--clients", "1", "--json", str(path)]
    profile(*attach_options(other_server), *argv)
    run = load_run(path)
    assert read_account(run)["worker and handler"] > 0
    in_force = {"batch_size": 4, "max_batch_delay_ms": 5, "workers": 1}
    assert other_server.in_force == in_force and run.details["in_force"] == {}
    # The CPU time of a server that we did not start is not known.
    assert not [row.metric for row in run.rows if row.metric.startswith("cpu_s")]
    # The server was left running.
    assert other_server.running.is_running()


@pytest.mark.server
def test_ctrl_c_under_load_leaves_no_generator(other_server):
    # Its own session, in which processes that are left can be found.
    argv = [*attach_options(other_server), "--duration", "60"]
    command = start_until("of load", *argv, start_new_session=True)
    interrupt(command)
    # A generator that was just starting finds no load on its stdin, and ends.
    eventually(lambda: not find_session_members(command.pid))
    assert other_server.running.is_running()


@pytest.mark.server
def test_ctrl_c_while_the_server_starts_leaves_nothing(archive, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = start_until("start", "--mar", str(archive), env=env)

    def find_java() -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(command.pid).children()
            return [child.pid for child in children if child.name() == "java"]
        return []

    java = eventually(find_java)
    interrupt(command)
    assert find_session_members(java[0]) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
