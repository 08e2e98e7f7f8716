"""The preset that is written, the tables, the plots."""

from __future__ import annotations

import pytest
from rich.console import Console

from offpath.archive.model_config import load_preset, make_model_config
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.choice import judge, summarise_trials
from offpath.profiling.experiments.tuning.plot import save_html, save_plot
from offpath.profiling.experiments.tuning.preset import check_writable, write_preset
from offpath.profiling.experiments.tuning.report import (
    format_outcome,
    front_candidates,
    print_tuning,
)
from offpath.profiling.experiments.tuning.space import Candidate
from tests.profiling.tunings import OTHER, PRESET, make_finals, make_tuning

RESULT = make_tuning()
VERDICT = judge(RESULT.finals, RESULT.reference, 100)


def test_the_winner_is_a_preset_that_offpath_archive_takes(tmp_path):
    path = tmp_path / "tuned.yaml"
    preset = {**load_preset("cpu"), "handler": {"top_k": 3}}
    write_preset(path, preset, RESULT, VERDICT)
    config = make_model_config(load_preset(str(path)), {}, {})
    assert config["handler"] == {"top_k": 3, "threads": OTHER.threads}
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 5)
    assert (config["minWorkers"], config["maxWorkers"]) == (2, 2)
    assert config["responseTimeout"] == preset["responseTimeout"]
    assert path.read_text().startswith("# 2026-01-01")


def test_an_existing_preset_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "tuned.yaml"
    check_writable(path, force=False)
    path.touch()
    with pytest.raises(ExpectedError, match="--force"):
        check_writable(path, force=False)
    check_writable(path, force=True)
    with pytest.raises(ExpectedError, match="folder"):
        check_writable(tmp_path, force=True)


def test_the_front_holds_whom_no_other_beats_in_both():
    assert front_candidates(summarise_trials(RESULT.trials)) == {
        PRESET,
        OTHER,
        Candidate(1, 1, 1, 1),
        Candidate(32, 20, 3, 2),
    }


def test_the_tables_fit_80_columns_and_name_preset_front_and_verdict():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))
    print_tuning(RESULT, 100, VERDICT, console)
    text = console.export_text()
    assert "preset, front" in text and "slow, front" in text
    assert "…" not in text
    assert "beats the preset by" in text


def test_the_last_line_says_how_to_build_the_winner():
    text = format_outcome(RESULT, VERDICT, 100, "tuned.yaml")
    assert f"winner: {OTHER}: 120.0 req/s (118.0 to 123.0 in 3 fresh rounds)" in text
    assert text.endswith(
        "bound 100 ms; build with: offpath archive --preset tuned.yaml"
    )


def test_the_last_line_says_to_keep_a_preset_that_is_confirmed():
    result = make_tuning(finals=make_finals([100, 100, 100], [80, 90, 70]))
    verdict = judge(result.finals, PRESET, 100)
    text = format_outcome(result, verdict, 100, "tuned.yaml")
    assert text.startswith(f"keep the preset: {PRESET}: 100.0 req/s")
    assert "nothing to rebuild" in text


def test_the_page_has_the_plot_the_candidates_and_the_verdict(tmp_path):
    path = tmp_path / "tune.html"
    save_html(RESULT, 100, VERDICT, path)
    html = path.read_text()
    assert "<svg" in html and "beats the preset" in html
    assert html.count(str(OTHER)) >= 1


def test_the_plot_is_written_and_another_suffix_is_refused(tmp_path):
    path = tmp_path / "tune.svg"
    save_plot(RESULT, 100, VERDICT, path)
    assert "<svg" in path.read_text()
    with pytest.raises(ExpectedError, match=r"\.svg or \.png"):
        save_plot(RESULT, 100, VERDICT, tmp_path / "tune.pdf")
