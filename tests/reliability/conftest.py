"""Fixtures of the long tests. tests/conftest.py leaves their folder out unless selected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.profiling.load.workload import load_workload
from tests.reliability.logged_server import LogTrial, run_trial


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[LogTrial]:
    with run_trial(tmp_path) as trial:
        yield trial


@pytest.fixture
def photographs() -> list[bytes]:
    return load_workload("photos-55k").read()
