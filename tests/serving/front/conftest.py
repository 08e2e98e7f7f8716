"""Starts one front door, before each server, for all tests of a door that is like most.

By default that before Granian is the door of `tests/serving/granian`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front import FrontProcess, front, log_variables
from tests.support.granian import granian

OPTIONS = (
    *("near-free", "--invocations", "--client-ids"),
    *("--limit", "client-timeout-s=3", "--unready-s", "1"),
)


@pytest.fixture(scope="session")
def torchserve_door(
    model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """The near-free model behind a door before TorchServe, with a prediction log."""
    folder = tmp_path_factory.mktemp("front")
    with front(model_store, folder / "logs", *OPTIONS, **log_variables(folder)) as running:
        yield running


@pytest.fixture(
    scope="session", params=["torchserve", pytest.param("granian", marks=pytest.mark.slow)]
)
def door(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """The near-free model behind a door before each server."""
    if request.param == "torchserve":
        yield request.getfixturevalue("torchserve_door")
        return
    with granian(model_store, tmp_path_factory.mktemp("front") / "logs", *OPTIONS) as running:
        yield running
