"""`offpath profile` as a user calls it, on handlers without a server."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from offpath import cli
from offpath.profiling.core.run import load_run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.profile_figures import (
    BATCH,
    OTHER,
    STAGE,
    count_images,
    find_cell,
    read_parts,
)
from tests.offpath.conftest import Run
from tests.support.echo_archive import MakeMar
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "profiling" / "profilers" / "planted_handler.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(4):
        image = PHOTOGRAPHS[number].rgb.resize((500, 333))
        (folder / f"{number}.jpg").write_bytes(encode(image, "JPEG", quality=90))
    return folder


@pytest.fixture
def profile(run: Run, images: Path, tmp_path: Path):
    """Profiles the few photographs; what was saved, and how the command ended."""

    def call(kind: str, *argv: object):
        path = tmp_path / "result.json"
        common = ("--images", images, "--warm-up", 2, "--json", path)
        done = run("profile", kind, *common, *argv)
        return load_run(path, f"profile-{kind}"), done

    return call


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
    profile, tmp_path
):
    page = tmp_path / "page.html"
    handlers = ("--handler", "offpath", "--handler", "naive")
    argv = (*handlers, "--requests", 24, "--s3-latency-ms", 30, "--html", page)
    saved, done = profile("stages", *argv)
    assert list(saved.variants) == ["offpath", "naive"]
    summary = Summary(saved)
    # As TorchServe would give them: the naive handler's batching never took effect.
    sizes = {name: find_cell(summary, name).batch_size for name in saved.variants}
    assert sizes == {"offpath": 8, "naive": 1}
    assert {count_images(summary, name) for name in saved.variants} == {24}
    assert share(summary, "naive", "s3") > 0.5
    assert 0 < share(summary, "naive", "config") < share(summary, "naive", "s3")
    assert not {"s3", "config"} & set(read_parts(summary, "offpath", STAGE))
    for name in saved.variants:
        # `log`, an append to an open segment, is a stage of ours. The README's run shows 98.7 %; of
        # three batches here, the threads that ship to S3 and write metrics may take part of one.
        stages = [part for part in read_parts(summary, name, STAGE) if part != OTHER]
        assert 0.97 < share(summary, name, *stages) <= 1.0
    assert "how often as quick as offpath" in done.out and "decode" in done.out
    assert "<html" in page.read_text(encoding="utf-8")


def test_cprofile_finds_the_planted_mistakes_by_name(profile, tmp_path):
    argv = ("--handler", f"{PLANTED}:Planted", "--requests", 8, "--output", tmp_path)
    saved, done = profile("cprofile", *argv)
    names = {row["name"] for row in saved.details["functions"]["Planted"]}
    assert {"write_audit", "<built-in method time.sleep>"} <= names
    assert (tmp_path / "Planted.prof").stat().st_size > 100
    assert saved.details["files"] == {"Planted": ["Planted.prof"]}
    assert "write_audit" in done.out and "time.sleep" in done.out


def test_an_archive_is_profiled_with_its_own_handler(profile, make_mar: MakeMar):
    argv = ("--mar", make_mar("echo"), "--requests", 4, "--batch-size", 2)
    summary = Summary(profile("stages", *argv)[0])
    assert count_images(summary, "echo") == 4
    assert find_cell(summary, "echo").batch_size == 2


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        pytest.param(["Planted"], {"Planted"}, id="one"),
        pytest.param([], None, id="all"),
    ],
)
def test_a_handler_that_fails_is_left_out_and_said(
    others, kept, images, tmp_path, capsys
):
    argv = ["profile", "stages", f"--images={images}", "--warm-up=2", "--requests=8"]
    argv += [f"--handler={PLANTED}:{name}" for name in ("Raising", *others)]
    # Not by `run`: the handler's own traceback is shown.
    with pytest.raises(SystemExit) as ended:
        cli.run([*argv, f"--json={tmp_path / 'a.json'}"])
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert "raised in handle: ValueError: planted" in said.err
    if kept:
        assert "left out after a failure, see above: Raising" in said.err
        assert "write_audit" in said.out
        assert {row.variant for row in load_run(tmp_path / "a.json").rows} == kept


def test_ctrl_c_leaves_no_process_and_no_file(images, tmp_path):
    command = [sys.executable, "-m", "offpath", "profile", "stages", "--images"]
    command += [str(images), "--requests", "1000000"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        # A step is one line, however long the folder of images is called.
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "400"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # A step of its own: from now on batches are running.
    while "batch 8" not in process.stderr.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stderr.close()
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.iterdir())
