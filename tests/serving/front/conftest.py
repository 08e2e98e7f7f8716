"""Starts one front door for all tests that only send it requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front import FrontProcess, front


@pytest.fixture(scope="session")
def door(
    model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """EfficientNet-Lite0 and the near-free model behind a door."""
    logs = tmp_path_factory.mktemp("front") / "logs"
    with front(model_store, logs, "--client-timeout-s", "3") as running:
        yield running
