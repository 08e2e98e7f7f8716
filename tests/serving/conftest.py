"""Servers that many tests share. Those of TOGETHER in tests/conftest.py run in one process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offpath.serving.server.management import open_http
from offpath.serving.starting import start_server
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.echo_archive import make_settings
from tests.support.front import FRONTS, FrontProcess, ServeProcess, log_variables, logged

if TYPE_CHECKING:
    from tests.support.obedient_model import Flag

FEW_DESCRIPTORS = 300
NAMES = ("--allow-host", "Models.example")


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
    with start_server(make_settings(model_store / "near-free.mar", server="granian")) as running:
        yield running


@pytest.fixture(scope="session")
def torchserve_door(
    model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontProcess]:
    """Runs a door before TorchServe with `near-free`; front/test_door_lifecycle.py ends it."""
    folder = tmp_path_factory.mktemp("front")
    options = ("near-free", "--invocations", "--client-ids", "--explanations", "--unready-s", "1")
    options += ("--limit", "client-timeout-s=3", *NAMES)
    with FrontProcess(model_store, folder / "logs", *options, **log_variables(folder)) as running:
        yield running


@pytest.fixture(scope="session")
def flag(tmp_path_factory: pytest.TempPathFactory) -> Flag:
    """Returns what tells the models `tricky` and `limited` of `granian_door` what to do."""
    from tests.support.obedient_model import Flag

    return Flag(tmp_path_factory.mktemp("tricky") / "flag")


@pytest.fixture(scope="session")
def granian_store(model_store: Path, flag: Flag) -> Path:
    """Returns a store of `near-free`, archives that are not offpath's, and those that obey `flag`.

    `tricky` has two versions, and `limited` a time limit.
    """
    from tests.serving.contract.foreign_archives import unpack, write_foreign
    from tests.support.obedient_model import build_obedient

    store = flag.path.with_name("store")
    store.mkdir()
    build_obedient(store, flag, version="2.0", workers=1).rename(store / "tricky2.mar")
    build_obedient(store, flag)
    build_obedient(store, flag, "limited", timeout_s=3)
    write_foreign(store)
    unpack(model_store / "near-free.mar", store / "near-free")
    return store


@pytest.fixture(scope="session")
def granian_door(granian_store: Path) -> Iterator[FrontProcess]:
    """Runs a door before Granian with all of the store; granian/test_granian.py ends it."""
    folder = granian_store.parent
    config = folder / "config.properties"
    # Without a size, TorchServe's own limit of 6.5 MB is in force.
    keys = ("max_request_size=33554432", "number_of_netty_threads=4", "NUM_WORKERS=1")
    config.write_text("\n".join(keys))
    options = ("--config", str(config), "--explanations", "--limit", "client-timeout-s=3", *NAMES)
    with logged(FRONTS["granian"], granian_store, folder, *options) as running:
        yield running


class Direct(ServeProcess):
    """A Granian with `near-free` and without a door; its process may open FEW_DESCRIPTORS.

    Attributes:
        bodies: an empty folder; it stores none.
    """

    def __init__(self, folder: Path, archive: Path) -> None:
        (folder / "bodies").mkdir()
        self.bodies, self.log_dir = folder / "bodies", folder / "logs"
        options = ("--server", "granian", "--no-front", "--log-dir", self.log_dir, *NAMES, archive)
        few = ("prlimit", f"--nofile=128:{FEW_DESCRIPTORS}")
        super().__init__(folder / "errors", *options, prefix=few, **log_variables(folder))

    def describe_workers(self) -> dict[int, str]:
        """Returns the status of each worker by its process id."""
        with open_http(self.ready["management"]) as client:
            (model,) = client.get("/models/near-free").json()
        return {worker["pid"]: worker["status"] for worker in model["workers"]}

    def python_workers(self) -> list[int]:
        return list(self.describe_workers())

    def nginx_workers(self) -> list[int]:
        return []


@pytest.fixture(scope="session")
def granian(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Direct]:
    """Starts Granian without a door, beside its archive, at a soft limit of 128 descriptors."""
    folder = tmp_path_factory.mktemp("granian")
    running = Direct(folder, Path(shutil.copy2(model_store / "near-free.mar", folder)))
    try:
        yield running
    finally:
        assert running.terminate() == 0, running.errors()
