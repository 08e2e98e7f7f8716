"""`offpath tune`: one tiny real grid."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from offpath.archive.model_config import load_preset, make_model_config
from offpath.commands.tune import command
from offpath.profiling.core.run import load_run
from offpath.profiling.experiments import grid_search


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("server", ["torchserve", "granian"])
def test_a_grid_on_a_real_server_writes_a_preset_that_builds(
    model_store, tmp_path, monkeypatch, server
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid_search, "SECONDS", 1.0)
    monkeypatch.setattr(grid_search, "WARM_UP_S", {server: 0.5})
    grid = ("--batch-size", "4", "--max-batch-delay-ms", "1", "--workers", "1", "--rounds", "2")
    outputs = ("--html", "tune.html", "--json", "tune.json")
    asked = (
        "--mar",
        str(model_store / "near-free.mar"),
        "--p95-ms",
        "9000",
        "--server",
        server,
        "--clients",
        "4",
    )

    done = CliRunner().invoke(command, (*asked, *grid, *outputs), catch_exceptions=False)

    assert done.exit_code == 0, done.output
    run = load_run(Path("tune.json"))
    assert not run.failures and len(run.variants) == 2 and run.rounds == 2
    winner = grid_search.read_result(run).verdict.winner
    assert "keep the archive's setting" in done.output or f"best: {winner}" in done.output
    assert Path("tune.html").exists()
    config = make_model_config(load_preset("tuned.yaml"), {}, {}).settings
    assert config["batchSize"] == winner.batch_size and config["minWorkers"] == winner.workers
