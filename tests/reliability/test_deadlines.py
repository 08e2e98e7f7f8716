"""Three times the load that a server can answer: with deadlines it answers as much as it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import load_model_source
from offpath.profiling.load.generators import LocustGenerator
from offpath.profiling.load.parameters import Load
from tests.support.granian import FRONTS
from tests.support.images import jpeg

# The model sleeps, so that the server's rate does not depend on who else uses the cores.
MODEL = """
import time

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(3, 10)

    def forward(self, images):
        time.sleep(0.1 * len(images))
        return self.classifier(images.mean((2, 3)))
"""
BOUND_MS, BATCH, WORKERS, SECONDS = 1000, 4, 2, 20.0

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(300)]


class Nobody:
    """Watches nothing."""

    def on_window(self) -> None: ...

    def on_progress(self, replies: int, elapsed_s: float) -> None: ...


def measure_in_time(url: str, folder: Path, clients: int, rate: float | None) -> float:
    """Returns the good answers per second that came within BOUND_MS."""
    image = folder / "image.jpg"
    image.write_bytes(jpeg())
    load = Load(seconds=SECONDS, warm_up_s=5, rate=rate)
    window = load.for_window(url, (image,), clients, timeout_s=20.0)
    sample = LocustGenerator().run(window, Nobody())
    in_time = sum(ms <= BOUND_MS for ms in sample.latencies_ms)
    print(f"rate {rate}: {in_time / SECONDS:.1f} in time/s, {sample.statuses}")
    return in_time / SECONDS


@pytest.mark.parametrize("product", FRONTS)
@pytest.mark.parametrize(("deadline_ms", "least", "most"), [(BOUND_MS, 0.85, 1.1), (0, 0, 0.3)])
def test_under_three_times_the_load_deadlines_keep_the_answers_that_come_in_time(
    tmp_path: Path, product: str, deadline_ms: int, least: float, most: float
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    source = load_model_source(f"{tmp_path}/net.py:Net", "random")
    server = {"batchSize": BATCH, "minWorkers": WORKERS, "maxWorkers": WORKERS}
    handler = {**source.handler, "deadline_ms": deadline_ms, "engine": "eager"}
    config = make_model_config(load_preset("cpu"), server, handler)
    spec = ArchiveSpec("slow", "1.0", source, None, "none", config)
    build_archive(spec, tmp_path / "store", force=True)
    options = ("--limit", "client-connections=1000")
    with FRONTS[product](tmp_path / "store", tmp_path / "logs", *options) as door:
        url = f"{door.url}/predictions/slow"
        sustainable = measure_in_time(url, tmp_path, 2 * BATCH * WORKERS, None)
        reached = measure_in_time(url, tmp_path, 500, 3 * sustainable)
    assert least <= reached / sustainable <= most
