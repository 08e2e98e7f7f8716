"""Engines side by side: what is chosen, the processes, one run in earnest, how it is shown."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from offpath.cli import run as run_command
from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Cell, Run, load_run
from offpath.profiling.experiments.engines import (
    EnginesChoices,
    choose_variants,
    continue_run,
    drop_missing,
    run_engines,
)
from offpath.profiling.experiments.engines_report import document_of
from offpath.profiling.experiments.engines_team import Team
from offpath.profiling.report.terminal import print_document
from tests.support.photographs import PHOTOGRAPHS, encode

PROCESSES = 3
BREAKS = "eager bf16"


def test_the_baseline_comes_first_and_all_engines_are_the_default():
    chosen = choose_variants(())
    assert chosen[0] == "eager fp32"
    assert {"openvino int8", "compiled fp32"} < set(chosen)
    assert choose_variants(("openvino:int8",)) == ["eager fp32", "openvino int8"]
    assert choose_variants(("eager:fp32", "eager:fp32")) == ["eager fp32"]


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


def test_what_cannot_run_is_said_with_its_reason():
    chosen = ["eager fp32", "openvino int8", "tensorrt fp16"]
    reasons = dict.fromkeys(chosen) | {"tensorrt fp16": "needs a CUDA device"}
    left, not_run = drop_missing(chosen, reasons)
    assert left == ["eager fp32", "openvino int8"]
    assert not_run == {"tensorrt fp16": "needs a CUDA device"}
    with pytest.raises(ExpectedError, match="tensorrt fp16: needs a CUDA device"):
        drop_missing(["eager fp32", "tensorrt fp16"], reasons)
    assert drop_missing(["eager fp32"], reasons) == (["eager fp32"], {})


def test_the_parent_imports_no_torch_whose_pages_would_be_shared():
    code = (
        "import sys; from offpath.profiling.experiments import engines;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def make_team() -> Team:
    return Team(PROCESSES, 1, "tests.profiling.quick_engine")


def make_order(folder: Path, engine: str = "quick") -> dict[str, str]:
    return {"engine": engine, "precision": "fp32", "folder": str(folder)}


def list_engines() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "quick_engine" in " ".join(child.cmdline())]


def test_a_window_is_of_all_processes_together_and_none_is_left(tmp_path):
    with make_team() as team:
        started = team.start(make_order(tmp_path))
        assert len(list_engines()) == PROCESSES
        figures = team.forward(8, 0.01)
        team.start(make_order(tmp_path))
        assert len(list_engines()) == PROCESSES
        assert team.check()["all.pictures"] == 4
    assert list_engines() == []
    assert started["load_s"] == 0.01 and started["import_s"] > 0
    assert 0 < started["pss_bytes.engine"] < started["rss_bytes.engine"]
    # An image each in 10 ms; each had half of its core.
    assert figures["images"] == PROCESSES
    assert figures["elapsed_s"] == pytest.approx(0.01)
    assert figures["forward_ms"] == pytest.approx(10)
    assert figures["other_cores"] == pytest.approx(PROCESSES / 2)


def test_an_engine_that_cannot_load_is_said_and_leaves_no_process(tmp_path):
    with pytest.raises(ExpectedError, match="broken: no such graph"):
        with make_team() as team:
            team.start(make_order(tmp_path, "broken"))
    assert list_engines() == []


def make_choices(folder: Path, **changes) -> EnginesChoices:
    choices = EnginesChoices(
        models=("near-free",),
        engines=("openvino:fp32", "eager:bf16"),
        batch_sizes=(1, 2),
        rounds=2,
        seconds=0.05,
        processes=1,
        threads=1,
        device="cpu",
        workload=str(folder),
        seed=0,
        command="offpath bench engines",
    )
    return replace(choices, **changes)


class StoppingListener:
    """Spoils the weights before they are loaded, and stops the run when the second round begins."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.failures: list[str] = []

    def on_step(self, text: str) -> None:
        if text == f"round 1/2: {BREAKS}: near-free":
            (weights,) = self.temporary.rglob("weights.pt")
            weights.write_bytes(b"nothing that torch can read")
        if text.startswith("round 2/2"):
            raise KeyboardInterrupt

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        pass

    def on_progress(self, done: int, total: int) -> None:
        pass

    def on_failure(self, variant: str, reason: str) -> None:
        self.failures.append(f"{variant}: {reason}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs."""
    folder = tmp_path_factory.mktemp("photographs")
    for index, photograph in enumerate(PHOTOGRAPHS[:3]):
        (folder / f"{index}.jpg").write_bytes(encode(photograph.image, "JPEG"))
    return folder


def test_a_run_measures_checks_and_goes_on_when_a_variant_breaks(folder, tmp_path):
    listener, path = StoppingListener(tmp_path), tmp_path / "engines.json"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tempfile.tempdir", str(tmp_path))
        run_engines(make_choices(folder), listener, lambda run: run.save(path))
    saved = {
        (row.variant, row.batch_size, row.metric): row.value
        for row in load_run(path, "engines").rows
    }
    for variant in ("eager fp32", "openvino fp32"):
        assert saved[variant, 0, "load_s"] > 0 and saved[variant, 0, "import_s"] > 0
        assert 0 < saved[variant, 0, "pss_bytes.engine"]
        for size in (1, 2):
            assert saved[variant, size, "images"] >= 3 * size
    openvino = "openvino fp32"
    assert saved[openvino, 0, "artefact_bytes"] > 4 * 1000 * 147 / 2  # its weights
    assert saved[openvino, 0, "all.pictures"] == 3
    assert saved[openvino, 0, "all.largest_move"] < 1e-5
    assert not saved[openvino, 0, "all.top1_changes"]
    (failed,) = listener.failures
    assert failed.startswith(f"{BREAKS} of near-free: ")
    assert not any(key[0] == BREAKS and key[2] == "images" for key in saved)
    commands = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not any("experiments.engines" in " ".join(command) for command in commands)


def make_run(**changes) -> Run:
    """openvino int8 is three times eager in one round, four times in the other."""
    run = Run(
        experiment="engines",
        command="offpath bench engines",
        settings={"processes": 2, "seconds": 1.0, "parity_bound": 0.05},
        variants={"eager fp32": {}, "openvino int8": {}},
        workloads={"resnet50": {"name": "photos", "count": 32, "mean_bytes": 1000}},
        host={"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        not_run={"tensorrt fp16": "needs a CUDA device"},
    )
    start, cell = Cell("resnet50"), Cell("resnet50", batch_size=8)
    for round_, rate in enumerate((60, 80)):
        for variant, images in (("eager fp32", 20), ("openvino int8", rate)):
            run.add(round_, variant, start, {"load_s": 0.4, "rss_bytes.engine": 4e8})
            run.add(round_, variant, cell, {"images": images, "elapsed_s": 1.0})
    answers = {"largest_move": 0.02, "top1_changes": 0, "pictures": 32}
    figures = {
        f"{where}.{it}": x for where in ("all", "gate") for it, x in answers.items()
    }
    run.add(0, "openvino int8", start, {**figures, "artefact_bytes": 26e6})
    return replace(run, **changes)


def print_text(run: Run) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_document(document_of(run, None), console)
    return console.file.getvalue()


def test_the_report_has_speed_up_range_start_and_answers_in_80_columns():
    text = print_text(make_run())
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if "openvino int8" in line]
    assert rows[0] == ["openvino", "int8", "8", "70.0", "60.0-80.0", "3.50"]
    assert rows[1] == ["openvino", "int8", "0.40", "400", "26.0"]
    assert rows[2][2:] == ["32", "0.02000", "0", "0.02000", "0", "passes"]
    assert "not run: tensorrt fp16: needs a CUDA device" in text


@pytest.mark.parametrize(
    ("bound", "changes", "verdict"),
    [
        pytest.param(0.02, 0, "passes", id="at-the-bound"),
        pytest.param(0.0199, 0, "refuses", id="moves-too-much"),
        pytest.param(0.05, 1, "refuses", id="another-class"),
        pytest.param(None, 1, "", id="no-bound-no-gate"),
    ],
)
def test_the_verdict_is_the_parity_gates(bound, changes, verdict):
    run = make_run(settings={"parity_bound": bound})
    rows = [
        replace(row, value=changes) if row.metric == "gate.top1_changes" else row
        for row in run.rows
    ]
    text = print_text(replace(run, rows=rows))
    assert [word for word in ("passes", "refuses") if f" {word} \n" in text] == (
        [verdict] if verdict else []
    )


def test_the_chart_has_the_ratio_beside_the_rate():
    (chart,) = document_of(make_run(), None).headline
    assert [bar.text for bar in chart.bars] == ["20.0 (1.00 x)", "70.0 (3.50 x)"]


def test_further_rounds_may_have_other_engines_but_no_other_settings():
    other = make_run(variants={"eager fp32": {}, "compiled fp32": {}})
    both = continue_run(make_run(), other)
    assert both.rounds == 4 and len(both.variants) == 3
    with pytest.raises(ExpectedError, match="seconds"):
        continue_run(make_run(), make_run(settings={"seconds": 2.0}))


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(["--batch-sizes", "0"], 2, "whole numbers", id="batch-sizes"),
        pytest.param(["--model", "vgg"], 2, "resnet50", id="model"),
        pytest.param(["--workload", "nowhere"], 2, "photos-55k", id="no-such-folder"),
        pytest.param(["--engines", "caffe"], 2, "openvino:int8", id="engine"),
    ],
)
def test_wrong_input_is_said_before_anything_is_built(argv, code, said, folder, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(["bench", "engines", "--workload", str(folder), *argv])
    assert ended.value.code == code
    assert said in capsys.readouterr().err


def test_a_saved_result_is_shown_and_never_overwritten(tmp_path, capsys):
    path = tmp_path / "engines.json"
    make_run().save(path)
    for argv, code in ((["show", str(path)], 0), (["engines", "--json", str(path)], 2)):
        with pytest.raises(SystemExit) as ended:
            run_command(["bench", *argv])
        assert (ended.value.code or 0) == code
    printed = capsys.readouterr()
    assert "3.50" in printed.out and "--append" in printed.err
