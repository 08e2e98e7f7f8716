"""Engines' results on disk, their statistics, and how they are shown."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.engines_choice import choose_variants, drop_missing
from offpath.profiling.experiments.engines_page import write_engines_page
from offpath.profiling.experiments.engines_plot import save_engines_plot
from offpath.profiling.experiments.engines_report import print_engines
from offpath.profiling.experiments.engines_result import (
    ENGINES,
    Artefact,
    EngineFailure,
    EnginesResult,
    Load,
    Parity,
    Window,
    merge_engines,
)
from offpath.profiling.experiments.engines_summary import (
    find_best,
    find_noise,
    summarise_engines,
)


def make_window(round_: int, variant: str, images: list[int], **changes) -> Window:
    values = {
        "round": round_,
        "model": "resnet50",
        "variant": variant,
        "batch_size": 8,
        "threads": 1,
        "images": images,
        "elapsed_s": [1.0 for _ in images],
        "cpu_s": [0.99 for _ in images],
    }
    return Window(**(values | changes))


def make_engines(**changes) -> EnginesResult:
    """Two cores; openvino int8 is three times eager in one round, four times in the other."""
    rows = [("eager fp32", 10), ("eager fp32 unfolded", 8), ("openvino int8", 30)]
    windows = []
    for round_, gain in ((0, 0), (1, 10)):
        for variant, rate in rows:
            rate += gain if variant == "openvino int8" else 0
            windows += [
                make_window(round_, variant, [rate, rate]),
                make_window(round_, variant, [rate + 1]),
                make_window(round_, variant, [rate + 5], threads=2, cpu_s=[1.8]),
            ]
    values = {
        "command": "offpath bench engines",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        "settings": {"processes": 2, "seconds": 1.0},
        "workload": {"name": "photos", "mean_bytes": 1000, "count": 32},
        "parity_bound": 0.05,
        "not_run": {"tensorrt fp16": "needs a CUDA device"},
        "artefacts": [Artefact(0, "resnet50", "openvino int8", 26_000_000, 31.0)],
        "loads": [
            Load(0, "resnet50", variant, 2.5, 0.4, 400_000_000, 500_000_000, 2)
            for variant, _ in rows
        ],
        "parities": [Parity(0, "resnet50", "openvino int8", 32, 0.021, 1, 0.02, 0)],
        "windows": windows,
        "failures": [
            EngineFailure(0, "resnet50", "compiled fp32", "compiled fp32: died\ntrace")
        ],
    }
    return EnginesResult(**(values | changes))


def test_a_result_is_read_as_it_was_saved(tmp_path):
    path = tmp_path / "engines.json"
    ENGINES.save(make_engines(), path)
    assert ENGINES.load(path) == make_engines()


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"format": "offpath-bench/1"}')
    with pytest.raises(ExpectedError, match="offpath bench engines"):
        ENGINES.load(path)


def test_rounds_of_like_runs_are_numbered_on_and_unlike_ones_refused():
    merged = merge_engines(make_engines(), make_engines())
    assert merged.rounds == 4
    assert {load.round for load in merged.loads} == {0, 2}
    with pytest.raises(ExpectedError, match="seconds"):
        merge_engines(make_engines(), make_engines(settings={"seconds": 2.0}))


def test_ratios_are_of_rounds_and_rates_of_all_processes():
    rows = {row.variant: row for row in summarise_engines(make_engines())}
    row = rows["openvino int8"]
    assert row.rates[8].median == 70 and (row.rates[8].low, row.rates[8].high) == (
        60,
        80,
    )
    assert row.ratios[8].median == pytest.approx(3.5)
    assert (row.ratios[8].low, row.ratios[8].high) == (3.0, 4.0)
    assert row.alone_ms[8].high == pytest.approx(1000 / 31)
    assert row.wide_ms[8].high == pytest.approx(1000 / 35)
    assert row.pss_bytes == 250_000_000
    assert rows["eager fp32"].ratios[8].median == 1


def test_the_best_is_within_the_parity_bound():
    result = make_engines()
    rows = summarise_engines(result)
    assert find_best(rows, 0.05).variant == "openvino int8"
    assert find_best(rows, 0.01).variant == "eager fp32"


def test_a_process_that_did_not_get_its_core_is_said():
    result = make_engines()
    assert find_noise(replace(result, windows=result.windows[:6])) == []
    slow = make_window(1, "eager fp32", [9, 9], cpu_s=[0.9, 0.5])
    (said,) = find_noise(replace(result, windows=[*result.windows[:6], slow]))
    assert "eager fp32 of resnet50 had 30 % less" in said


def test_the_report_fits_80_columns_and_has_every_figure_and_reason():
    text = StringIO()
    print_engines(make_engines(), Console(file=text, width=80))
    shown = text.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    shown = " ".join(shown.split())
    for figure in ("70.0", "60.0-80.0", "3.50", "0.02100", "26.0", "1.25 x at batch 8"):
        assert figure in shown
    assert "tensorrt fp16: needs a CUDA device" in shown
    assert "compiled fp32: died" in shown and "trace" not in shown
    assert "unfolded" not in shown


def test_page_and_plot_are_written_and_the_plot_is_the_same_each_time(tmp_path):
    write_engines_page(make_engines(), tmp_path / "a.html")
    assert "3.50 x" in (tmp_path / "a.html").read_text()
    save_engines_plot(make_engines(), tmp_path / "a.svg")
    save_engines_plot(make_engines(), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_baseline_comes_first_and_all_engines_are_the_default():
    chosen = choose_variants(())
    assert chosen[0] == "eager fp32" and {"openvino int8", "compiled fp32"} < set(
        chosen
    )
    assert choose_variants(("openvino:int8",)) == ["eager fp32", "openvino int8"]
    assert choose_variants(("eager:fp32", "eager:fp32")) == ["eager fp32"]


def test_what_cannot_run_is_said_with_its_reason():
    chosen = ["eager fp32", "openvino int8", "tensorrt fp16"]
    reasons = dict.fromkeys(chosen) | {"tensorrt fp16": "needs a CUDA device"}
    left, not_run = drop_missing(chosen, reasons)
    assert left == ["eager fp32", "openvino int8"]
    assert not_run == {"tensorrt fp16": "needs a CUDA device"}
    with pytest.raises(ExpectedError, match="tensorrt fp16: needs a CUDA device"):
        drop_missing(["eager fp32", "tensorrt fp16"], reasons)
    assert drop_missing(["eager fp32"], reasons) == (["eager fp32"], {})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param("caffe", "'caffe' is unknown", id="engine"),
        pytest.param("openvino:int4", "openvino:int8", id="precision"),
    ],
)
def test_unknown_engines_are_refused(asked, said):
    with pytest.raises(ExpectedError, match=said):
        choose_variants((asked,))
