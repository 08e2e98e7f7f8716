"""A user's handler in a process of its own, whose planted mistakes are found by name."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.profilers.handler_profilers import FlameCollector
from offpath.profiling.profilers.profile_experiment import write_entry
from offpath.profiling.profilers.profiled_process import (
    HandlerSpec,
    Profile,
    ProfileJob,
    profile_handler,
)
from tests.guarantees import guarantee
from tests.support.photographs import PHOTOGRAPHS, encode

PLANTED = Path(__file__).with_name("planted_handler.py")
BATCHES = 4
BATCH_SIZE = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes an unzipped archive without a model, and two images beside it."""
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "model" / "MAR-INF").mkdir(parents=True)
    manifest = {"model": {"modelName": "planted", "handler": PLANTED.name}}
    (folder / "model" / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    for number in range(2):
        image = PHOTOGRAPHS[number].image.resize((64, 48))
        (folder / f"{number}.jpg").write_bytes(encode(image, "JPEG"))
    return folder


@pytest.fixture
def profile(folder: Path, tmp_path: Path):
    """Returns a function that profiles a class of the planted handler's file."""

    def run(kind: str, class_name: str = "Planted", file: Path | None = None) -> Profile:
        entry = write_entry(f"{PLANTED}:{class_name}", folder / "model")
        spec = HandlerSpec("mine", str(folder / "model"), entry, BATCH_SIZE)
        images = tuple(map(str, sorted(folder.glob("*.jpg"))))
        job = ProfileJob(kind, spec, images, 1, BATCHES, file=str(file or ""))
        return profile_handler(job, tmp_path)

    return run


def test_stages_add_up_and_name_the_method_with_the_mistakes(profile):
    batches = profile("stages").batches
    assert [batch.size for batch in batches] == [BATCH_SIZE] * BATCHES
    for batch in batches:
        stages = batch.stages_s
        assert list(stages) == ["preprocess", "inference", "postprocess", "write_audit"]
        assert stages["write_audit"] > BATCH_SIZE * 0.002
        assert stages["postprocess"] > 0.005
        # No stage counts the time of another that it called.
        assert sum(stages.values()) <= batch.total_s


def test_lines_names_the_lines_with_the_mistakes(profile):
    lines = profile("lines").lines
    requests = BATCHES * BATCH_SIZE
    by_function = {}
    for row in lines:
        by_function.setdefault(row.function, []).append(row)
    audit = {row.source.strip(): row for row in by_function["Planted.write_audit"]}
    slow = audit["time.sleep(0.002)"]
    assert slow.hits == requests and slow.time_s >= requests * 0.002
    assert any("open(" in source for source in audit)
    # Ran on the pool's threads.
    assert by_function["Planted.measure"][0].hits == requests
    assert "Planted.initialize" not in by_function


def flame_page(folder, title):
    collector, page = FlameCollector(title), folder / "flame.html"
    with collector.watching():
        time.sleep(0.02)  # Something to sample.
    collector.finish(str, page)
    return page.read_text(encoding="utf-8")


@guarantee("Script or escapes in pages and names")
def test_no_name_ends_the_script_of_a_flame_graph(tmp_path):
    assert "</script><b>" not in flame_page(tmp_path, "</script><b>")


def test_a_process_that_dies_is_an_error_with_its_exit_code_and_last_words(profile):
    with pytest.raises(ExpectedError, match="(?s)its process ended with -9.*farewell"):
        profile("stages", "Dying")
