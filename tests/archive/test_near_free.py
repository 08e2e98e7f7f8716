"""The stand-in for an accelerator: models take turns, as on one GPU."""

from __future__ import annotations

import fcntl
from types import SimpleNamespace

import pytest
import torch

from offpath.archive.models import near_free


def test_workers_share_one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        with open(near_free.__file__) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setenv(near_free.WAIT_VARIABLE, "50")
    monkeypatch.setattr(near_free, "time", SimpleNamespace(sleep=sleep))
    near_free.NearFree()(torch.zeros(4, 3, 224, 224))
    assert slept_s == [0.2]
