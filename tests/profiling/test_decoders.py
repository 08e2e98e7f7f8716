from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from offpath.commands.bench_decoders import command
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments import decoders
from offpath.profiling.experiments.decoders import (
    DecodersMeasurement,
    DecodersResult,
    Parity,
    read_jpegs,
)
from offpath.profiling.experiments.decoders_report import (
    print_decoders,
    save_decoders_plot,
    write_decoders_page,
)
from offpath.profiling.experiments.decoders_summary import (
    find_decoder_warnings,
    summarise_decoders,
)
from offpath.profiling.experiments.decoders_ways import (
    DECODER,
    PAIR,
    WAYS,
    Way,
    prepare_ways,
)
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_folder
from tests.profiling.pages import list_requests, read_page
from tests.support.photographs import encode, find_photograph

ALWAYS = {"pillow", "simplejpeg", "torchvision"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph that is decoded scaled, one that is not, and one that is no JPEG."""
    folder = tmp_path_factory.mktemp("photographs")
    retina, coffee = find_photograph("retina").rgb, find_photograph("coffee").rgb
    (folder / "a.jpg").write_bytes(encode(retina.crop((100, 200, 1100, 980)), "JPEG"))
    (folder / "b.jpg").write_bytes(encode(coffee, "JPEG", quality=92))
    (folder / "c.png").write_bytes(encode(coffee.resize((60, 40)), "PNG"))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The JSON of a short run by the command, and what it printed."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    threads = torch.get_num_threads()
    arguments = ["--workload", str(folder), "--rounds", "2", "--json", str(path)]
    try:
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    finally:
        torch.set_num_threads(threads)
    return {**json.loads(path.read_text()), "printed": done.output}


def test_every_way_that_can_run_here_is_measured_in_each_round(run: dict) -> None:
    here = {way.name for way in WAYS} - set(run["not_run"])
    assert {way.name for way in WAYS if set(way.packages) <= ALWAYS} <= here
    for round_ in (0, 1):
        assert here == {m["way"] for m in run["measurements"] if m["round"] == round_}
    assert all(m["images"] == 2 and m["elapsed_s"] > 0 for m in run["measurements"])


def test_answers_of_every_way_are_near_the_stock_ones(run: dict) -> None:
    differences = {p["way"]: p["difference"] for p in run["parity"]}
    assert differences["stock"] == 0
    assert differences["simplejpeg"] == differences["Pillow"] <= 0.01
    assert 0 < max(differences.values()) <= 0.05
    assert not any(p["changed"] for p in run["parity"])


def test_what_cannot_run_is_said_after_the_tables(run: dict) -> None:
    for name in run["not_run"]:
        assert f"not run: {name}:" in " ".join(run["printed"].split())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("cv2"), "not installed; pip install opencv-python"),
        (
            OSError("libGL.so.1:\n cannot open"),
            "does not load: libGL.so.1: cannot open",
        ),
        (RuntimeError("too old a library"), "does not load: too old a library"),
    ],
)
def test_a_way_that_cannot_be_prepared_is_left_out_and_says_why(
    error: Exception, said: str
) -> None:
    def fail(_: object) -> None:
        raise error

    bad = Way("bad", DECODER, ("opencv-python",), fail)
    good = next(way for way in WAYS if way.name == "simplejpeg")
    runs, not_run = prepare_ways([bad, good], load_model("efficientnet-lite0").config)
    assert set(runs) == {"simplejpeg"}
    assert not_run == {"bad": said}


def test_a_workload_without_a_jpeg_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(find_photograph("coffee").rgb, "PNG"))
    with pytest.raises(ExpectedError, match="no JPEG in workload"):
        read_jpegs(load_folder(tmp_path), 32)


def test_a_picture_that_no_way_decodes_is_an_expected_error(folder: Path) -> None:
    model = load_model("efficientnet-lite0")
    runs, _ = prepare_ways(WAYS[:1], model.config)
    with pytest.raises(ExpectedError, match="photograph 1"):
        decoders.classify(
            runs["Pillow"], [bytearray(b"junk")], model.config, model.source.module
        )


def make_result(**changes: object) -> DecodersResult:
    ways = {
        "Pillow": {"kind": DECODER, "is_ours": False, "versions": {"pillow": "13"}},
        "simplejpeg scaled, fast": {"kind": DECODER, "is_ours": True, "versions": {}},
        "stock": {"kind": PAIR, "is_ours": False, "versions": {}},
        "decode: scaled": {"kind": PAIR, "is_ours": True, "versions": {}},
    }
    seconds = dict(zip(ways, (0.2, 0.1, 0.3, 0.12)))
    measurements = [
        DecodersMeasurement(round_, "photos", way, 10, factor * s, factor * s)
        for round_, factor in enumerate((1.0, 0.9, 1.5))
        for way, s in seconds.items()
    ]
    parity = [Parity("photos", way, 0.0123, int(way != "stock")) for way in ways]
    result = DecodersResult(
        command="offpath bench decoders",
        started_at="2026-01-01T00:00:00+00:00",
        host={"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        settings={"rounds": 3},
        ways=ways,
        workloads={"photos": {"identity": "a", "mean_bytes": 50_000, "count": 10}},
        measurements=measurements,
        parity=parity,
        not_run={"OpenCV": "not installed; pip install opencv-python-headless"},
    )
    return replace(result, **changes)


def test_figures_are_medians_and_ratios_are_within_a_kind() -> None:
    rows = {row.way: row for row in summarise_decoders(make_result(), "photos")}
    fast = rows["simplejpeg scaled, fast"]
    assert (fast.ms, fast.ms_low, fast.ms_high) == pytest.approx((10, 9, 15))
    assert fast.mb_per_s == pytest.approx(5)
    assert fast.ratio == pytest.approx(2)
    assert rows["decode: scaled"].ratio == pytest.approx(2.5)
    assert (fast.difference, fast.changed) == (0.0123, 1)


def test_a_core_that_was_shared_is_said() -> None:
    result = make_result()
    rows = summarise_decoders(result, "photos")
    assert find_decoder_warnings(rows) == []
    shared = [replace(m, cpu_s=m.elapsed_s / 2) for m in result.measurements]
    rows = summarise_decoders(make_result(measurements=shared), "photos")
    assert "the worst 50 %" in find_decoder_warnings(rows)[0]


def test_tables_fit_80_columns_without_cutting_a_figure() -> None:
    text = StringIO()
    print_decoders(make_result(), Console(file=text, width=80))
    shown = text.getvalue()
    assert "2.50" in shown and "0.0123" in shown and "…" not in shown
    assert "pip install opencv-python-headless" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_page_has_the_figures_and_loads_nothing(tmp_path: Path) -> None:
    write_decoders_page(make_result(), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = " ".join(" ".join(read_page(html).texts).split())
    assert "10.0 ms (2.0 x)" in text and "12.0 ms (2.5 x)" in text
    assert "not run: OpenCV" in text
    assert list_requests(html) == []


def test_the_plot_is_the_same_file_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    save_decoders_plot(make_result(), first)
    save_decoders_plot(make_result(), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_run_that_was_cut_short_is_still_shown(tmp_path: Path) -> None:
    result = make_result(workloads={}, measurements=[], parity=[])
    print_decoders(result, Console(file=StringIO(), width=80))
    write_decoders_page(result, tmp_path / "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text()
