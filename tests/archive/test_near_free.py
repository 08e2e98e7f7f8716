"""The stand-in for an accelerator: models take turns, as on one GPU."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from offpath.archive.models.near_free import WAIT_VARIABLE, NearFree


def forward(images: int) -> tuple[float, float]:
    model, batch = NearFree(), torch.zeros(images, 3, 224, 224)
    began_s = time.monotonic()
    model(batch)
    return began_s, time.monotonic()


def test_workers_share_one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "50")
    with ThreadPoolExecutor(2) as workers:
        times = list(workers.map(forward, [4, 4]))
    took_s = max(end for _, end in times) - min(start for start, _ in times)
    assert took_s >= 0.4
