"""A model whose next batch or load does what a test says by a file, and archives of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.serving.server.management import ManagementClient, open_http
from tests.conftest import build
from tests.support.eventually import eventually

BATCH, WORKERS = 4, 2
FOR_EVER = 1 << 30
HANG = "time.sleep(600)"
# A worker dies of a white image, at this instruction; with os.kill the thread would go on.
POISON = "if any(one.min() > 2.2 for one in images): __import__('ctypes').string_at(0)"
BREAK = 'raise RuntimeError("CUDA error: an illegal memory access was encountered")'
MODEL = """
import json
import os
import time
from pathlib import Path

import torch


def claim(suffix):
    try:
        return Path(FLAG + suffix).rename(FLAG + ".taken").read_text()
    except OSError:
        return None


def wait():
    Path(FLAG + ".waiting").write_text(str(os.getpid()))
    while claim(".go") is None:
        time.sleep(0.01)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(48, 10)
        self.code, self.times = "", 0
        if Path(FLAG + ".dead").exists():
            raise ValueError("the weights are of another model")

    def forward(self, images):
        if order := claim(".order"):
            self.code, self.times = json.loads(order)
        if self.times:
            self.times -= 1
            exec(self.code)
        if (standing := Path(FLAG + ".standing")).exists():
            exec(standing.read_text())
        if Path(FLAG + ".fails").exists():
            raise ValueError("it fails")
        pooled = torch.nn.functional.adaptive_avg_pool2d(images, 4)
        return self.classifier(pooled.flatten(1))
"""


@dataclass(frozen=True)
class Flag:
    """The files by which a model is told what to do; their names begin with this path."""

    path: Path

    def file(self, suffix: str) -> Path:
        """Returns one of its files: while `.dead` exists nothing loads, with `.fails` all fails."""
        return Path(f"{self.path}{suffix}")

    def order(self, code: str, times: int = 1) -> None:
        """Lets the worker of the next batch run code in it, and in so many batches in all."""
        self._write(".order", json.dumps([code, times]))

    @contextmanager
    def standing(self, code: str) -> Iterator[None]:
        """Lets every batch of every worker run code, which sees its `images`."""
        self._write(".standing", code)
        yield
        self.file(".standing").unlink()

    def hold(self) -> None:
        """Lets the next batch wait for `go`."""
        self.file(".waiting").unlink(missing_ok=True)
        self.order("wait()")

    def find_holder(self) -> int:
        """Returns the worker of the batch that waits, as soon as it has begun."""
        begun = self.file(".waiting")
        return int(eventually(lambda: begun.exists() and begun.read_text()))

    def go(self) -> None:
        """Lets the batch go on that waits."""
        self._write(".go")

    def _write(self, suffix: str, text: str = "") -> None:
        made = self.file(".made")
        made.write_text(text)
        made.rename(self.file(suffix))


def build_obedient(
    store: Path,
    flag: Flag,
    name: str = "tricky",
    version: str = "1.0",
    workers: int = WORKERS,
    timeout_s: int = 120,
    preset: str = "cpu",
    **handler: Any,
) -> Path:
    """Builds an archive of a model that obeys `flag`."""
    file = flag.path.with_name("net.py")
    file.write_text(f"FLAG = {str(flag.path)!r}\n{MODEL}")
    limits = {"batchSize": BATCH, "minWorkers": workers, "maxWorkers": workers}
    limits["responseTimeout"] = timeout_s
    options = {"weights": "random", "preset": preset, "limits": limits, **handler}
    return build(store, f"{file}:Net", name, version, **options)


def change_models(management_url: str, method: str, path: str, **parameters: object) -> None:
    """Registers, scales or unregisters; asks again after what TorchServe's own race left undone."""
    with open_http(management_url, timeout=60) as client:
        eventually(lambda: client.request(method, path, params=parameters).is_success)


def read_ready_pids(management_url: str, model: str) -> set[int]:
    """Returns the process ids of a model's READY workers, of its version 1.0."""
    with ManagementClient(management_url) as management:
        (one,) = (found for found in management.describe(model) if found.model_version == "1.0")
    return {pid for pid, state in zip(one.worker_pids, one.worker_states) if state == "READY"}
