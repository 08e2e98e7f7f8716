"""`offpath tune`: one tiny real search."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from offpath.archive.model_config import (
    format_model_config,
    load_preset,
    make_model_config,
)
from offpath.commands.tune import command
from offpath.profiling.core.run import load_run
from offpath.profiling.experiments import tune
from offpath.profiling.experiments.tune_report import read_fresh_rounds, read_trials
from offpath.profiling.load.window import Load

TINY = (
    *("--model", "near-free", "--workload", "photos-55k", "--clients", "4"),
    *("--search", "batch_size=4", "--search", "max_batch_delay_ms=1"),
    *("--search", "workers=1", "--search", "threads=2", "--p95-ms", "5000"),
)


def call(*args: str):
    return CliRunner().invoke(command, args, catch_exceptions=False)


@pytest.mark.server
@pytest.mark.slow
def test_a_search_on_a_real_torchserve_writes_a_preset_that_builds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "SETTLE_S", 0.5)
    monkeypatch.setattr(tune, "ROUNDS", 1)
    monkeypatch.setattr(tune, "LOAD", Load(seconds=1, warm_up_s=0))
    small = {**load_preset("cpu"), "minWorkers": 1, "maxWorkers": 1}
    Path("small.yaml").write_text(format_model_config(small))
    before = {process.pid for process in psutil.process_iter()}

    done = call(
        *TINY,
        "--preset",
        "small.yaml",
        "--trials",
        "2",
        "--html",
        "tune.html",
        "--json",
        "tune.json",
    )

    assert done.exit_code == 0, done.output
    run = load_run(Path("tune.json"))
    preset, other = read_trials(run).values()
    assert preset.setting.batch_size == 8
    assert other.setting.batch_size in (4, 8) and other.setting.threads in (1, 2)
    for trial in (preset, other):
        assert trial.error is None and trial.replies and not trial.failures
    assert [set(one) for one in read_fresh_rounds(run)] == [{preset.setting, other.setting}]
    assert Path("tune.html").exists()
    winner = other if "beats the preset" in done.output else preset
    assert winner is other or "confirms the preset" in done.output
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("winner: " if winner is other else "keep the preset: ")
    config = make_model_config(load_preset("tuned.yaml"), {}, {}).settings
    assert config["batchSize"] == winner.setting.batch_size
    assert config["minWorkers"] == winner.setting.workers
    assert config["handler"]["threads"] == winner.setting.threads
    assert not list_new_servers(before)


def list_new_servers(before: set[int]) -> list[psutil.Process]:
    """Servers of a search that were not there before; other people's may come and go."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid not in before
        and any("offpath-bench-" in word for word in process.info["cmdline"] or ())
        and any(sys.prefix in word for word in process.info["cmdline"] or ())
    ]
