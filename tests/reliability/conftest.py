"""The long tests run where their marker is asked for, and nowhere else."""

from __future__ import annotations

import pytest

MARK = "reliability"


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves them out of runs that choose by other markers, as `-m "not slow"` does."""
    if MARK in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(MARK)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
