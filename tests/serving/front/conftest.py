"""Starts one front door, before each server, for all tests that only send it requests.

By default that before Granian is the door of `tests/serving/granian`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front import FrontProcess
from tests.support.granian import FRONTS


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=() if name == "torchserve" else pytest.mark.slow)
        for name in FRONTS
    ],
)
def door(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """The near-free model behind a door."""
    logs = tmp_path_factory.mktemp("front") / "logs"
    run = FRONTS[request.param]
    with run(model_store, logs, "near-free", "--limit", "client-timeout-s=3") as running:
        yield running
