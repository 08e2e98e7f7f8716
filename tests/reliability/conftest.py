"""Runs the long tests only if their marker is selected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.logged_server import LogTrial, run_trial

MARK = "reliability"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the long tests in runs that select by other markers, such as `-m "not slow"`."""
    if MARK in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(MARK)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[LogTrial]:
    with run_trial(tmp_path) as trial:
        yield trial
