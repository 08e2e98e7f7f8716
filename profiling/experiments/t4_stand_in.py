"""Makes what scripts/gpu.sh needs to let a larger GPU stand in for a T4.

python -m offpath.profiling.experiments.t4_stand_in repeats|photographs PATH
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from PIL import Image

from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.stages import StageTimer
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_workload

# Images per second of ResNet-50 in fp16 on a T4. An assumption: nobody here has measured one.
T4_RATE = 1100
BATCH_SIZE, BATCHES = 16, 50


def count_repeats(model: str = "resnet50", device: str = "cuda") -> int:
    """Returns how often a model must run per batch so that a device is as slow as a T4."""
    under_test, where = load_model(model), torch.device(device)
    config, module = under_test.config, under_test.source.module.eval()
    engine = EagerEngine(module, config, where, "fp16" if device == "cuda" else "fp32")
    runner = BatchRunner(engine, config, where, BATCH_SIZE)
    runner.warm_up()
    start = time.perf_counter()
    for _ in range(BATCHES):
        runner.run(BATCH_SIZE, StageTimer())
    rate = BATCHES * BATCH_SIZE / (time.perf_counter() - start)
    return max(1, round(rate / T4_RATE))


def make_progressive(folder: Path, workload: str = "photos-55k") -> None:
    """Saves photographs as progressive JPEGs, which a GPU's JPEG engine does not take."""
    folder.mkdir(parents=True)
    for path in load_workload(workload).paths:
        with Image.open(path) as image:
            image.save(folder / path.name, quality="keep", progressive=True)


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "repeats":
        path.write_text(f"{count_repeats()}\n")
    else:
        make_progressive(path)
