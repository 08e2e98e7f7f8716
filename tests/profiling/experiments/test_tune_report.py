"""What a search shows and leaves."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from offpath.archive.model_config import load_preset, make_model_config
from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Failure
from offpath.profiling.experiments.tune_report import (
    ROWS_SHOWN,
    check_writable,
    document_of,
    format_outcome,
    make_tables,
    verdict_of,
    write_preset,
)
from offpath.profiling.report.terminal import print_document
from offpath.profiling.servers.registering import Setting
from tests.profiling.experiments.tuned import (
    OTHER,
    PRESET,
    make_run,
)


def test_the_tables_fit_80_columns_and_name_preset_and_verdict():
    run = make_run()
    run.variants[str(Setting(2, 2, 2, 2))] = asdict(Setting(2, 2, 2, 2))
    run.failures.append(Failure(0, str(Setting(2, 2, 2, 2)), "no memory"))
    console = Console(width=80, file=io.StringIO())
    print_document(document_of(run), console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    for part in ("preset", "slow", "no start", "beats the preset by"):
        assert part in text
    assert "p95 within 100 ms first" in text and "no memory" in text


def test_a_page_has_a_second_table_only_where_there_are_more_candidates() -> None:
    titles = [table.title for table in make_tables([["one"]] * 2, 100)]
    assert titles == ["times in ms, p95 within 100 ms first"]
    first, further = make_tables([["one"]] * (ROWS_SHOWN + 3), 100)
    assert (len(first.rows), len(further.rows)) == (ROWS_SHOWN, 3)


def test_the_chart_has_the_candidates_rates_best_first_and_the_winner_strong():
    (chart,) = document_of(make_run(p95_ms=95)).headline
    assert [bar.value for bar in chart.bars] == [120, 100, 50, 200]
    assert [bar.label for bar in chart.bars if bar.is_strong] == [str(OTHER)]


def test_the_winner_is_a_preset_that_offpath_archive_takes(tmp_path):
    path, run = tmp_path / "tuned.yaml", make_run()
    write_preset(path, run, verdict_of(run))
    config = make_model_config(load_preset(str(path)), {}, {}).settings
    assert config["handler"] == {"top_k": 3, "threads": OTHER.threads}
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 5)
    assert (config["minWorkers"], config["maxWorkers"]) == (2, 2)
    assert config["responseTimeout"] == load_preset("cpu")["responseTimeout"]
    assert path.read_text().startswith("# 2026-01-01")


def test_the_last_line_says_how_to_build_the_winner():
    run = make_run()
    text = format_outcome(run, verdict_of(run), Path("tuned.yaml"))
    assert f"winner: {OTHER}: 120.0 req/s (118.0 to 123.0 in 3 fresh rounds)" in text
    assert text.endswith(
        "bound 100 ms; build with: offpath archive --preset tuned.yaml"
    )


def test_the_last_line_says_to_keep_a_preset_that_is_confirmed():
    run = make_run([100, 100, 100], [80, 90, 70])
    text = format_outcome(run, verdict_of(run), Path("tuned.yaml"))
    assert text.startswith(f"keep the preset: {PRESET}: 100.0 req/s")
    assert "nothing to rebuild" in text


def test_an_existing_preset_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "tuned.yaml"
    check_writable(path, force=False)
    path.touch()
    with pytest.raises(ExpectedError, match="--force"):
        check_writable(path, force=False)
    check_writable(path, force=True)
    with pytest.raises(ExpectedError, match="folder"):
        check_writable(tmp_path, force=True)
