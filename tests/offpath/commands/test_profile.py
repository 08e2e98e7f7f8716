"""`offpath profile` as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from offpath import cli
from offpath.profiling.core.run import Cell
from offpath.profiling.core.run import Run as SavedRun
from offpath.profiling.core.run import load_run
from offpath.profiling.profilers import profile_experiment
from offpath.profiling.profilers.collector import LineSample
from offpath.profiling.profilers.profile_report import document_of
from offpath.profiling.report.document import format_markdown
from offpath.profiling.report.page import render_page
from offpath.serving.process.processes import is_running
from tests.offpath.conftest import Run, read_json_keys
from tests.support.echo_archive import MakeMar
from tests.support.eventually import eventually
from tests.support.pages import read_page
from tests.support.photographs import PHOTOGRAPHS, encode

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "profiling" / "profilers" / "planted_handler.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(4):
        image = PHOTOGRAPHS[number].rgb.resize((500, 333))
        (folder / f"{number}.jpg").write_bytes(encode(image, "JPEG", quality=90))
    return folder


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch) -> None:
    monkeypatch.setattr(profile_experiment, "WARM_UP", 2)


@pytest.fixture
def profile(run: Run, images: Path, tmp_path: Path):
    """Returns a function that profiles a few images, and returns the run and the command's end."""

    def call(kind: str, *argv: object):
        path = tmp_path / "result.json"
        common = ("--images", images, "--json", path)
        done = run("profile", kind, *common, *argv)
        assert list(json.loads(path.read_text())) == read_json_keys()[f"profile {kind}"]
        return load_run(path), done

    return call


def end(argv: list[str], capsys) -> tuple[int, Any]:
    """Returns exit code and output, which may hold a traceback of a handler or test server."""
    with pytest.raises(SystemExit) as ended:
        cli.run(["profile", *argv])
    return int(ended.value.code or 0), capsys.readouterr()


def test_the_page_of_a_flame_graph_contains_it(profile, tmp_path):
    page = tmp_path / "page.html"
    more = ("--output", tmp_path / "files", "--requests", 4)
    profile("flame", f"--handler={PLANTED}:Planted", "--html", page, *more)
    shown = page.read_text(encoding="utf-8")
    assert "write_audit" in shown and "https://fonts" not in shown
    # A frame, whose page is in the page; nothing else is loaded.
    assert read_page(shown).loads == ["iframe"]


@pytest.mark.parametrize("kind", ["stages", "lines"])
def test_our_own_archive_is_profiled_without_torchserve(profile, tmp_path, monkeypatch, kind):
    (tmp_path / "ts.py").write_text("raise ImportError('torchserve is not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    saved, _ = profile(kind, "--requests", 16)
    metrics = {row.metric for row in saved.rows}
    assert kind == "lines" or {"stage_ms.decode", "stage_ms.inference"} < metrics
    files = {line["file"] for line in saved.details.get("lines", {}).get("offpath", [])}
    assert kind == "stages" or "handler/classifier.py" in files


def test_lines_show_the_users_file_first_and_fold_ours_behind_it():
    ours = LineSample("decode", "handler/pipeline.py", 7, 1000, 5.0, "pixels = decode(body)")
    mine = LineSample("Mine.postprocess_item", "my_handler.py", 3, 1000, 0.001, "return verdict")
    saved = SavedRun("profile-lines", "", {}, variants={"mine": {}}, workloads={"w": {}})
    saved.add(0, "mine", Cell("w", 0, 1), {"batch_ms": [5.1]})
    saved.details = {"lines": {"mine": [asdict(ours), asdict(mine)]}}
    document = document_of(saved, None)
    terminal, page = format_markdown(document, is_narrow=True), render_page(document)
    assert "return verdict" in terminal and "pixels = decode" not in terminal
    places = [*map(page.index, ("return verdict", "<summary>Lines of", "pixels = decode"))]
    assert places == sorted(places)
    # Without a file of the user's, ours is what the profile is about.
    saved.details = {"lines": {"mine": [asdict(ours)]}}
    assert "pixels = decode" in format_markdown(document_of(saved, None), is_narrow=True)


def test_cprofile_finds_planted_mistakes_and_leaves_a_failing_handler_out(images, tmp_path, capsys):
    handlers = [f"--handler={PLANTED}:{name}" for name in ("Raising", "Planted")]
    argv = [f"--images={images}", "--requests=8", f"--output={tmp_path}"]
    result = tmp_path / "a.json"
    code, printed = end(["cprofile", *handlers, *argv, f"--json={result}"], capsys)
    assert code == 1
    assert "raised in handle: ValueError: planted" in printed.err
    assert "left out after a failure (see the message above): Raising" in printed.err
    assert "write_audit" in printed.out and "time.sleep" in printed.out
    saved = load_run(result)
    assert {row.variant for row in saved.rows} == {"Planted"}
    calls = {row["name"]: row["calls"] for row in saved.details["functions"]["Planted"]}
    # `measure` ran on the calling thread instead of the pool's, once per request.
    assert calls["write_audit"] == calls["measure"] == 8
    assert "<built-in method time.sleep>" in calls
    assert (tmp_path / "Planted.prof").stat().st_size > 100
    assert f"Planted: {tmp_path}/Planted.prof" in printed.out and "Raising.prof" not in printed.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_profile_leaves_no_process_and_no_file(
    number, images, make_mar: MakeMar, tmp_path
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "offpath", "profile", "stages", "--images"]
    command += [str(images), "--requests", "1000000000", "--mar", str(make_mar("echo"))]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        # A step is one line, however long the folder of images is called.
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "400"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # The step in which batches run.
    while "batches of 8" not in process.stderr.readline():
        assert process.poll() is None
    children = eventually(lambda: psutil.Process(process.pid).children(recursive=True))
    process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGINT else -9)
    process.stderr.close()
    eventually(lambda: not any(map(is_running, children)))
    # Nobody removes the folders of a process that was killed.
    assert number == signal.SIGKILL or not list(temporary.iterdir())
