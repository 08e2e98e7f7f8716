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
from offpath.profiling.profilers.profile_figures import (
    BATCH,
    OTHER,
    STAGE,
    Profiled,
    read_profile,
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
    """Returns a function that profiles a few images, and returns the run and the command's end."""

    def call(kind: str, *argv: object):
        path = tmp_path / "result.json"
        common = ("--images", images, "--warm-up", 2, "--json", path)
        done = run("profile", kind, *common, *argv)
        return load_run(path, f"profile-{kind}"), done

    return call


def share(handler: Profiled, *stages: str) -> float:
    """Returns the median batch's share: a batch may be interrupted by another process."""
    parts = [handler.values(f"{STAGE}.{name}") for name in stages]
    return statistics.median(
        sum(batch) / total for *batch, total in zip(*parts, handler.values(BATCH))
    )


@pytest.mark.s3
def test_the_naive_handler_spends_its_time_on_s3_and_ours_spends_none(
    profile, tmp_path
):
    page = tmp_path / "page.html"
    handlers = ("--handler", "offpath", "--handler", "naive")
    argv = (*handlers, "--requests", 24, "--s3-latency-ms", 30, "--html", page)
    saved, done = profile("stages", *argv)
    ours, naive = handlers = read_profile(saved)
    assert (ours.name, naive.name) == ("offpath", "naive")
    # TorchServe gives the naive handler single requests: its batch settings have no effect.
    assert (ours.cell.batch_size, naive.cell.batch_size) == (8, 1)
    assert (ours.images, naive.images) == (24, 24)
    assert share(naive, "s3") > 0.5
    assert 0 < share(naive, "config") < share(naive, "s3")
    assert not {"s3", "config"} & set(ours.parts(STAGE))
    for handler in handlers:
        # `log`, an append to an open segment, is a stage of ours. The README's run shows 98.7 %.
        # Here, threads that ship to S3 and write metrics may take part of one of three batches.
        stages = [part for part in handler.parts(STAGE) if part != OTHER]
        assert 0.97 < share(handler, *stages) <= 1.0
    assert "speed per image relative to offpath" in done.out and "decode" in done.out
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
    (handler,) = read_profile(profile("stages", *argv)[0])
    assert (handler.name, handler.images, handler.cell.batch_size) == ("echo", 4, 2)


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        pytest.param(["Planted"], {"Planted"}, id="one"),
        pytest.param([], None, id="all"),
    ],
)
def test_a_handler_that_fails_is_left_out_with_a_message(
    others, kept, images, tmp_path, capsys
):
    argv = ["profile", "stages", f"--images={images}", "--warm-up=2", "--requests=8"]
    argv += [f"--handler={PLANTED}:{name}" for name in ("Raising", *others)]
    # Not the fixture `run`, because the handler's own traceback is printed.
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
    # The step after which batches run.
    while "batch 8" not in process.stderr.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stderr.close()
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.iterdir())
