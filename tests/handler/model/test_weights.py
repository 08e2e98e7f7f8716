from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

from offpath.archive.models.near_free import NearFree
from offpath.handler.model.weights import RandomFillsSkipped, make_with_weights

# Loads the weights as a worker does, runs the model, and stays until it is told to end.
PROGRAM = """
import json, sys, torch
sys.path.insert(0, {folder!r})
from efficientnet_lite0 import EfficientNetLite0
from offpath.handler.model.weights import make_with_weights

model = make_with_weights(EfficientNetLite0, {folder!r} + "/weights.pt").eval()
model.to(memory_format=torch.channels_last)
with torch.inference_mode():
    model(torch.zeros(1, 3, 224, 224))
print("loaded", flush=True)
sys.stdin.readline()
found, sizes = False, {{}}
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        found = line.strip().endswith("/weights.pt")
    elif found and line.strip().endswith("kB"):
        name, size, _ = line.split()
        sizes[name] = sizes.get(name, 0) + 1024 * int(size)
print(json.dumps(sizes), flush=True)
sys.stdin.readline()
"""


def test_two_workers_use_the_same_pages_of_an_archives_weights(
    model_store: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(model_store / "classifier.mar") as archive:
        archive.extractall(tmp_path)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=Path(__file__).parents[3],
                )
            )
            for _ in range(2)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "loaded\n"
        for worker in workers:
            worker.stdin.write("measure\n")
            worker.stdin.flush()
            sizes = json.loads(worker.stdout.readline())
            size_bytes = (tmp_path / "weights.pt").stat().st_size
            # All of them were read, in place; a copy would have left the file's pages unread.
            assert sizes["Rss:"] > 0.9 * size_bytes
            shared = sizes["Shared_Clean:"] + sizes["Shared_Dirty:"]
            assert shared > 0.95 * sizes["Rss:"]
        for worker in workers:
            worker.stdin.close()


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    saved = NearFree().state_dict()
    torch.save({k: v.half() for k, v in saved.items()}, tmp_path / "weights.pt")
    loaded = make_with_weights(NearFree, str(tmp_path / "weights.pt")).state_dict()
    for name, tensor in saved.items():
        assert loaded[name].dtype == torch.float32
        torch.testing.assert_close(loaded[name], tensor, atol=1e-3, rtol=1e-3)


class RandomFeatures(torch.nn.Module):
    """Random parameters by several of torch's ways, and a random buffer that is never saved."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        torch.nn.init.kaiming_normal_(self.convolution.weight)
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.trunc_normal_(self.linear.weight)
        buffer = torch.empty(1000)
        torch.nn.init.normal_(buffer)
        self.register_buffer("features", buffer, persistent=False)


def test_buffers_are_filled_while_parameters_are_not() -> None:
    with RandomFillsSkipped():
        torch.manual_seed(0)
        state = torch.get_rng_state()
        torch.nn.Linear(100, 100)
        assert torch.equal(torch.get_rng_state(), state)
        features = RandomFeatures().features
    assert 0.9 < features.std() < 1.1
