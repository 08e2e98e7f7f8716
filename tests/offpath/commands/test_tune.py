"""`offpath tune`: one tiny real grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.archive.model_config import load_preset, make_model_config
from offpath.profiling.core.run import load_run
from offpath.profiling.experiments import grid_search
from tests.offpath.conftest import Run


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("server", ["torchserve", "granian"])
def test_a_grid_on_a_real_server_writes_a_preset_that_builds(
    run: Run, model_store, tmp_path, monkeypatch, server
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid_search, "SECONDS", 1.0)
    monkeypatch.setattr(grid_search, "WARM_UP_S", {server: 0.5})
    grid = ("--batch-size", "4", "--max-batch-delay-ms", "1", "--workers", "1", "--rounds", "2")
    outputs = ("--html", "tune.html", "--json", "tune.json", "--clients", "4")
    mar = model_store / "near-free.mar"

    done = run("tune", "--mar", mar, "--p95-ms", 9000, "--server", server, *grid, *outputs)

    assert done.code == 0, done.err
    saved = load_run(Path("tune.json"))
    assert not saved.failures and len(saved.variants) == 2 and saved.rounds == 2
    winner = grid_search.read_result(saved).verdict.winner
    assert "keep the archive's setting" in done.out or f"best: {winner}" in done.out
    assert Path("tune.html").exists()
    config = make_model_config(load_preset("tuned.yaml"), {}, {}).settings
    assert config["batchSize"] == winner.batch_size and config["minWorkers"] == winner.workers
