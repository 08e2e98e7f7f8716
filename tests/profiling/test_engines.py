"""A run of the engines' benchmark in earnest: near-free, one engine that breaks, then Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from offpath.cli import run
from offpath.profiling.experiments.engines_choice import EnginesChoices
from offpath.profiling.experiments.engines_result import ENGINES, EnginesResult
from offpath.profiling.experiments.engines_session import run_engines
from tests.profiling.test_engines_result import make_engines
from tests.support.photographs import PHOTOGRAPHS, encode

BREAKS = "eager bf16"


class StoppingListener:
    """Spoils the weights before they are loaded, and stops the run when the second round begins."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.steps: list[str] = []
        self.failures: list[str] = []
        self.done: list[tuple[int, int]] = []

    def on_step(self, text: str) -> None:
        self.steps.append(text)
        if text.startswith("round 1/2") and BREAKS in text:
            (weights,) = self.temporary.rglob("weights.pt")
            weights.write_bytes(b"nothing that torch can read")
        if text.startswith("round 2/2"):
            raise KeyboardInterrupt

    def on_progress(self, done: int, total: int) -> None:
        self.done.append((done, total))

    def on_failure(self, reason: str) -> None:
        self.failures.append(reason)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs."""
    folder = tmp_path_factory.mktemp("photographs")
    for index, photograph in enumerate(PHOTOGRAPHS[:3]):
        (folder / f"{index}.jpg").write_bytes(encode(photograph.image, "JPEG"))
    return folder


@pytest.fixture(scope="module")
def finished(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EnginesResult, StoppingListener]:
    """What was saved of a run that Ctrl-C ended."""
    choices = EnginesChoices(
        models=("near-free",),
        engines=("openvino:fp32", "eager:bf16"),
        batch_sizes=(1, 2),
        rounds=2,
        seconds=0.05,
        processes=1,
        device="cpu",
        workload=str(folder),
        seed=0,
        command="offpath bench engines",
    )
    temporary = tmp_path_factory.mktemp("work")
    listener = StoppingListener(temporary)
    saved: list[EnginesResult] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tempfile.tempdir", str(temporary))
        run_engines(choices, listener, saved.append)
    return saved[-1], listener


def test_each_variant_is_measured_at_each_batch_size(finished):
    result, listener = finished
    measured = [(w.variant, w.batch_size) for w in result.windows]
    variants = ("eager fp32", "openvino fp32")
    assert measured == [(name, size) for name in variants for size in (1, 2)]
    for window in result.windows:
        assert window.per_s > 0 and min(window.images) >= 3 * window.batch_size
    (artefact,) = result.artefacts
    assert artefact.size_bytes > 4 * 1000 * 147  # its weights
    for load in result.loads:
        assert 0 < load.pss_bytes < 2 * load.rss_bytes
        assert load.load_s > 0 and load.import_s > 0
    assert listener.done[-1] == (3, 6)


def test_answers_are_compared_on_all_photographs(finished):
    result, _ = finished
    (parity,) = result.parities
    assert (parity.variant, parity.photographs) == ("openvino fp32", 3)
    assert parity.largest_move < 1e-5 and parity.top1_changes == 0


def test_a_variant_that_breaks_leaves_the_rest(finished):
    result, listener = finished
    (failure,) = result.failures
    assert (failure.variant, failure.round) == (BREAKS, 0)
    assert f"{BREAKS} of near-free" in listener.failures[0]
    assert not any(window.variant == BREAKS for window in result.windows)
    assert {w.variant for w in result.windows} == {"eager fp32", "openvino fp32"}


def test_no_process_is_left(finished):
    commands = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not any("profiling.engines" in " ".join(command) for command in commands)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(["--batch-sizes", "0"], 2, "whole numbers", id="batch-sizes"),
        pytest.param(["--model", "vgg"], 2, "resnet50", id="model"),
        pytest.param(["--workload", "nowhere"], 1, "photos-55k", id="no-such-folder"),
        pytest.param(["--engines", "caffe"], 1, "openvino:int8", id="engine"),
    ],
)
def test_wrong_input_is_said_before_anything_is_built(argv, code, said, folder, capsys):
    with pytest.raises(SystemExit) as ended:
        run(["bench", "engines", "--workload", str(folder), *argv])
    assert ended.value.code == code
    assert said in capsys.readouterr().err


def test_a_saved_result_is_shown_and_never_overwritten(tmp_path, capsys):
    path = tmp_path / "engines.json"
    ENGINES.save(make_engines(), path)
    for argv, code in (
        (["show", str(path), "--html", str(tmp_path / "a.html")], 0),
        (["engines", "--json", str(path)], 1),
    ):
        with pytest.raises(SystemExit) as ended:
            run(["bench", *argv])
        assert (ended.value.code or 0) == code
    printed = capsys.readouterr()
    assert "3.50" in printed.out and "--append" in printed.err
    assert "openvino int8" in (tmp_path / "a.html").read_text()
