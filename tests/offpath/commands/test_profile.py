"""`offpath profile` in process, as a user calls it."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from offpath.cli import run
from offpath.profiling.core.run import Run, load_run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.in_process.profile_figures import (
    BATCH,
    OTHER,
    STAGE,
    count_images,
    find_cell,
    read_parts,
)
from tests.support.echo_archive import MakeMar
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "profiling" / "in_process" / "planted_handler.py"


def exit_code(*argv: object) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["profile", *map(str, argv)])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(4):
        image = PHOTOGRAPHS[number].rgb.resize((500, 333))
        (folder / f"{number}.jpg").write_bytes(encode(image, "JPEG", quality=90))
    return folder


def profile(kind: str, images: Path, path: Path, *argv: object) -> Run:
    common = ("--images", images, "--warm-up", 2, "--json", path)
    assert exit_code(kind, *common, *argv) == 0
    return load_run(path, f"profile-{kind}")


def share(summary: Summary, handler: str, *stages: str) -> float:
    """The median batch's: one that another process interrupts says nothing."""
    cell = find_cell(summary, handler)
    parts = [summary.values(handler, cell, f"{STAGE}.{name}") for name in stages]
    totals = summary.values(handler, cell, BATCH)
    return statistics.median(
        sum(batch) / total for *batch, total in zip(*parts, totals)
    )


@pytest.mark.s3
def test_the_naive_handler_spends_its_time_on_s3_and_ours_spends_none(
    images, tmp_path, capsys
):
    page = tmp_path / "page.html"
    handlers = ("--handler", "offpath", "--handler", "naive")
    argv = (*handlers, "--requests", 24, "--s3-latency-ms", 30, "--html", page)
    run = profile("stages", images, tmp_path / "a.json", *argv)
    assert list(run.variants) == ["offpath", "naive"]
    summary = Summary(run)
    # As TorchServe would give them: the naive handler's batching never took effect.
    sizes = {name: find_cell(summary, name).batch_size for name in run.variants}
    assert sizes == {"offpath": 8, "naive": 1}
    assert {count_images(summary, name) for name in run.variants} == {24}
    assert share(summary, "naive", "s3") > 0.5
    assert 0 < share(summary, "naive", "config") < share(summary, "naive", "s3")
    assert not {"s3", "config"} & set(read_parts(summary, "offpath", STAGE))
    for name in run.variants:
        # `log`, an append to an open segment, is a stage of ours. The README's run shows 98.7 %; of
        # three batches here, the threads that ship to S3 and write metrics may take part of one.
        stages = [part for part in read_parts(summary, name, STAGE) if part != OTHER]
        assert 0.97 < share(summary, name, *stages) <= 1.0
    said = capsys.readouterr().out
    assert "how often as quick as offpath" in said and "decode" in said
    assert "<html" in page.read_text(encoding="utf-8")


def test_cprofile_finds_the_planted_mistakes_by_name(images, tmp_path, capsys):
    argv = ("--handler", f"{PLANTED}:Planted", "--requests", 8, "--output", tmp_path)
    run = profile("cprofile", images, tmp_path / "a.json", *argv)
    names = {row["name"] for row in run.details["functions"]["Planted"]}
    assert {"write_audit", "<built-in method time.sleep>"} <= names
    assert (tmp_path / "Planted.prof").stat().st_size > 100
    assert run.details["files"] == {"Planted": ["Planted.prof"]}
    said = capsys.readouterr().out
    assert "write_audit" in said and "time.sleep" in said


def test_an_archive_is_profiled_with_its_own_handler(
    images, tmp_path, make_mar: MakeMar
):
    argv = ("--mar", make_mar("echo"), "--requests", 4, "--batch-size", 2)
    summary = Summary(profile("stages", images, tmp_path / "a.json", *argv))
    assert count_images(summary, "echo") == 4
    assert find_cell(summary, "echo").batch_size == 2


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(("--handler", "gone.py:A"), 1, "does not exist", id="no-file"),
        pytest.param(("--mar", "gone.mar"), 1, "no archive", id="no-archive"),
        pytest.param(("--images", "gone"), 1, "no workload", id="no-folder"),
        pytest.param(("--requests", "0"), 2, "0", id="no-requests"),
        pytest.param(("--model", "vgg"), 2, "near-free", id="unknown-model"),
    ],
)
def test_wrong_input_is_said(argv, code, said, capsys):
    assert exit_code("stages", *argv) == code
    assert said in capsys.readouterr().err


def test_an_empty_folder_is_said(tmp_path, capsys):
    assert exit_code("lines", "--images", tmp_path) == 1
    assert "no photographs" in capsys.readouterr().err


def test_a_picture_that_the_handler_refuses_is_said(tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    assert exit_code("stages", "--images", tmp_path) == 1
    assert "refused" in capsys.readouterr().err


def test_a_handler_that_fails_is_left_out_and_said(images, tmp_path, capsys):
    path = tmp_path / "a.json"
    argv = ("--handler", f"{PLANTED}:Raising", "--handler", f"{PLANTED}:Planted")
    common = ("--images", images, "--warm-up", 2, "--requests", 8, "--json", path)
    assert exit_code("stages", *argv, *common) == 1
    said = capsys.readouterr()
    assert "raised in handle: ValueError: planted" in said.err
    assert "left out after a failure, see above: Raising" in said.err
    assert "write_audit" in said.out
    assert {row.variant for row in load_run(path).rows} == {"Planted"}


def test_a_run_of_handlers_that_all_fail_says_why(images, tmp_path, capsys):
    argv = ("--handler", f"{PLANTED}:Raising", "--images", images, "--requests", 8)
    assert exit_code("stages", *argv) == 1
    assert "ValueError: planted" in capsys.readouterr().err


def test_ctrl_c_leaves_no_process_and_no_file(images, tmp_path):
    command = [sys.executable, "-m", "offpath", "profile", "stages", "--images"]
    command += [str(images), "--requests", "1000000"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # A step of its own: from now on batches are running.
    while "batch 8" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.3)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stderr.close()
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.iterdir())
