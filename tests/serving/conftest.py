"""A server for each test that any server must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.service.archived_handler import WARM_UP_BATCHES
from offpath.serving.session import make_server
from offpath.serving.torchserve.server import TorchServe
from tests.support.scrape import wait_for_items


@pytest.fixture(
    scope="session", params=["torchserve", pytest.param("granian", marks=pytest.mark.slow)]
)
def either(
    request: pytest.FixtureRequest, server: TorchServe, model_store: Path
) -> Iterator[TorchServe]:
    """Returns the shared TorchServe, or a Granian with `near-free`; neither has a door."""
    if request.param == "torchserve":
        yield server
        return
    settings = ServerSettings(
        model_store=model_store,
        models=("near-free.mar",),
        server="granian",
        inference_port=0,
        metrics_port=0,
    )
    with make_server(settings) as running:
        # The warm-up is counted within a second.
        wait_for_items(running, "near-free", 2 * WARM_UP_BATCHES * 8)
        yield running
