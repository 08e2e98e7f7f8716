"""Makes what scripts/gpu.sh needs: a larger GPU stands in for a T4, or batch norms are not folded.

python scripts/t4_stand_in.py repeats|photographs PATH
python scripts/t4_stand_in.py archive PATH.mar TIMES
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
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
# A ResNet-50 that computes each batch several times. TIMES is a number, or an expression that
# torch.fx cannot trace, such as `len(images) > 0`: nothing is folded then.
NET = """\
from torchvision.models import resnet

class Net(resnet.ResNet):
    def __init__(self):
        super().__init__(resnet.Bottleneck, [3, 4, 6, 3])

    def forward(self, images):
        for _ in range({times}):
            logits = super().forward(images)
        return logits
"""


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


def build_resnet(path: Path, times: str) -> None:
    """Builds an archive of NET with the weights of the embedded ResNet-50."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(NET.format(times=times))
        torch.save(load_model("resnet50").source.module.state_dict(), folder / "net.pt")
        (folder / "labels.txt").write_text("".join(f"{number}\n" for number in range(1000)))
        command = [sys.executable, "-m", "offpath", "archive", "--model", f"{name}/net.py"]
        command += ["--weights", f"{name}/net.pt", "--labels", f"{name}/labels.txt", "--force"]
        subprocess.run([*command, "--name", path.stem, "--output", str(path.parent)], check=True)


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "repeats":
        path.write_text(f"{count_repeats()}\n")
    elif what == "archive":
        build_resnet(path, sys.argv[3])
    else:
        make_progressive(path)
