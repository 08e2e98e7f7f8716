"""TorchServe and Granian under test, with or without the front door.

TorchServe runs our archive, the stock handler and a typical first one; Granian runs our archive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.call import NPY, Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.running_server import BESIDE, Groups
from offpath.profiling.servers import archives
from offpath.profiling.servers.adapter import BATCH_SIZE, Adapter
from offpath.profiling.servers.put_store import (
    PREDICTION_LOG,
    PUT_LATENCY_MS,
    Beside,
    run_put_store,
)
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.one_host import OneHostSession
from offpath.serving.granian.server import GranianServer
from offpath.serving.process.processes import find_fork_helpers
from offpath.serving.torchserve.launch import find_java
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_settings import ServerSettings
from offpath.serving.torchserve.session import View, make_server, warm_up

# The store's one archive.
ARCHIVE = f"{archives.NAME}.mar"
# The group of the fork server and the workers' launchers, see serving/fork/fork_server.py.
FORK_HELPERS = "fork helpers"
# Variables that tell the naive handler where to put its predictions.
NAIVE_VARIABLES = ("OFFPATH_NAIVE_BUCKET", "OFFPATH_NAIVE_ENDPOINT")
# Free ports; all clients of a benchmark share one address.
DOOR = DoorSettings(port=0, metrics_port=0, client_connections=10_000)
# What a variant may change of DoorSettings: `--variant NAME=offpath:front.KEY=VALUE`.
FRONT_KEYS = ("buffer_bytes", "queue")
# Group of the door's processes, which counts with the front end and is also shown alone.
NGINX = "nginx"


class RunningTorchServe:
    """A ready TorchServe or Granian; its process groups are the front end and the workers.

    Attributes:
        began_s: time of its start (`time.perf_counter`), where something else was started before.
    """

    def __init__(
        self,
        server: TorchServe,
        beside: Beside = Beside(),
        began_s: float | None = None,
    ) -> None:
        self.server, self._beside = server, beside
        self.began_s = began_s
        self.predict_url = f"{server.inference_url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        frontend = self.server.java_pid
        helpers = find_fork_helpers(frontend)  # none with Granian
        return {
            "frontend": [frontend],
            "workers": self.server.worker_pids(),
            **({FORK_HELPERS: helpers} if helpers else {}),
            **({BESIDE: list(self._beside.pids)} if self._beside.pids else {}),
        }

    def is_running(self) -> bool:
        return self.server.is_running()

    def log_path(self) -> Path:
        return self.server.log_path


@contextmanager
def run_nothing() -> Iterator[Beside]:
    yield Beside()


@dataclass
class TorchServeAdapter(Adapter):
    """One way to run TorchServe.

    Attributes:
        build: writes the .mar with some settings into a folder.
        archive_settings: what the .mar asks for; empty: TorchServe's defaults, batch size 1.
        server: `torchserve` or `granian`, as for `offpath serve --server`.
        stock: run without our config.properties and log settings.
        overrides: keys of config.properties.
        batch_size: see `Adapter`; wins over `archive_settings`.
        beside: starts what runs beside the server.
        beside_settings: what the result says of `beside`.
        needs: returns why the server cannot run here, apart from Java.
    """

    name: str
    build: Callable[[Path, Mapping[str, Any]], Path]
    archive_settings: Mapping[str, Any] = field(default_factory=dict)
    server: str = "torchserve"
    stock: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    call: Call = field(default_factory=Call)
    batch_size: int = BATCH_SIZE
    beside: Callable[[], AbstractContextManager[Beside]] = run_nothing
    beside_settings: Mapping[str, Any] = field(default_factory=dict)
    needs: Callable[[], str | None] = lambda: None
    _store: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "archive": self.config,
            **({} if self.server == "torchserve" else {"server": self.server}),
            "stock": self.stock,
            "fork_workers": not self.stock,
            "overrides": dict(self.overrides),
            "env": dict(self.env),
            **self.beside_settings,
        }

    @property
    def config(self) -> dict[str, Any]:
        """The model-config.yaml that the .mar gets; empty for none."""
        if not self.archive_settings:
            return {}
        return {**self.archive_settings, "batchSize": self.batch_size}

    def why_not(self) -> str | None:
        if self.server == "torchserve":
            try:
                find_java()
            except ExpectedError as error:
                return str(error)
        return self.needs()

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.build(folder, self.config)
        self._store = folder

    @contextmanager
    def running(self) -> Iterator[RunningTorchServe]:
        with self.beside() as beside:
            began_s = time.perf_counter()
            with make_server(self._make_settings(beside)) as server:
                if not self.stock and not isinstance(server, GranianServer):
                    # `offpath serve` announces a server after this.
                    workers = int(self.archive_settings.get("minWorkers", 1))
                    warm_up(server.inference_url, archives.NAME, workers)
                yield RunningTorchServe(server, beside, began_s)

    def _make_settings(self, beside: Beside) -> ServerSettings:
        if self._store is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        return ServerSettings(
            model_store=self._store,
            models=(f"{archives.NAME}={ARCHIVE}",),
            server=self.server,
            stock=self.stock,
            inference_port=0,
            management_port=0,
            metrics_port=0,
            log_dir=self._store / "logs",
            overrides=self.overrides,
            env={**self.env, **beside.env},
        )


def make_offpath_direct(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """Our archive with the host's preset, our config.properties, no front door."""
    config = archives.offpath_config(model, cores)
    return TorchServeAdapter(
        "offpath-direct",
        lambda folder, asked: archives.build_offpath(model, asked, folder),
        config,
    )


def make_offpath_granian_direct(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The archive of `offpath-direct` on Granian, without Java and without a front door."""
    return replace(
        make_offpath_direct(model, cores),
        name="offpath-granian-direct",
        server="granian",
        needs=why_no_granian,
    )


def why_no_granian() -> str | None:
    return why_missing(("granian", "uvloop"), "granian")


def make_offpath_thin(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The same server with thin clients: they decode and resize, and send a uint8 npy."""
    return replace(make_offpath_direct(model, cores), name="offpath-thin", call=Call(NPY))


def make_offpath_s3(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The same server with its prediction log shipped to a stand-in for S3."""
    config = archives.offpath_config(model, cores, prediction_log=PREDICTION_LOG)
    offpath = replace(make_offpath_direct(model, cores), archive_settings=config)
    return with_store(offpath, "offpath-s3")


def with_store(server: TorchServeAdapter, name: str) -> TorchServeAdapter:
    return replace(
        server,
        name=name,
        env={},
        beside=run_put_store,
        beside_settings={"s3": "a stand-in on loopback", "put_ms": PUT_LATENCY_MS},
    )


def why_missing(packages: Sequence[str], extra: str) -> str | None:
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} not installed: " f"pip install 'torchserve-offpath[{extra}]'"


def make_naive(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """A typical first handler (`baselines/naive_handler.py`) on TorchServe's defaults.

    With OFFPATH_NAIVE_BUCKET (and OFFPATH_NAIVE_ENDPOINT) it puts each prediction into S3.
    """
    store = {name: os.environ[name] for name in NAIVE_VARIABLES if name in os.environ}
    return TorchServeAdapter(
        "torchserve-naive",
        lambda folder, _: archives.build_naive(model, folder),
        stock=True,
        # Part of the settings: the result says whether it wrote to S3.
        env=store,
    )


def make_naive_s3(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The same handler with a stand-in for S3: one put per prediction."""
    return with_store(make_naive(model, cores), "torchserve-naive-s3")


def make_stock(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The stock image_classifier on TorchServe's defaults: no batching, its logging, its JVM."""
    return TorchServeAdapter(
        "torchserve-stock",
        lambda folder, _: archives.build_stock(model, None, folder),
        stock=True,
    )


def make_stock_fixed(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The stock image_classifier with our batch settings, one thread per worker and a fit JVM."""
    config = {
        key: value
        for key, value in archives.offpath_config(model, cores).items()
        if key != "handler"
    }
    return TorchServeAdapter(
        "torchserve-fixed",
        lambda folder, asked: archives.build_stock(model, asked, folder),
        config,
        stock=True,
        overrides={"vmargs": "-Xms2g -Xmx2g -XX:+UseParallelGC"},
        env={"OMP_NUM_THREADS": "1"},
    )


class RunningBehindDoor(RunningTorchServe):
    """A ready TorchServe or Granian behind a door."""

    def __init__(self, server: TorchServe, door: Door, began_s: float | None) -> None:
        super().__init__(server, began_s=began_s)
        self._door = door
        self.predict_url = f"{door.url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        nginx = self._door.nginx
        return {**super().groups(), NGINX: [nginx.pid, *nginx.worker_pids()]}

    def is_running(self) -> bool:
        return super().is_running() and self._door.nginx.is_running()


@dataclass
class FrontDoorAdapter(TorchServeAdapter):
    """Our archive behind the front door; `front` has keys of FRONT_KEYS that differ from `DOOR`."""

    front: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        door = {f"front.{name}": value for name, value in self.front.items()}
        nginx = f"nginx {find_nginx().version_text}"
        return super().settings | {"front": nginx, **door}

    def why_not(self) -> str | None:
        try:
            find_nginx()
        except ExpectedError as error:
            return str(error)
        return super().why_not()

    @contextmanager
    def running(self) -> Iterator[RunningBehindDoor]:
        began_s = time.perf_counter()
        settings = self._make_settings(Beside())
        door = replace(DOOR, **self.front)
        session = OneHostSession(lambda _: settings, door, View())
        try:
            session.start()
            yield RunningBehindDoor(session.rotation.current, session.door, began_s)
        finally:
            session.stop()


def make_offpath(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The archive of `offpath-direct`, with nginx before TorchServe."""
    direct = make_offpath_direct(model, cores)
    return FrontDoorAdapter("offpath", direct.build, direct.archive_settings)


def make_offpath_granian(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The same archive with nginx before Granian."""
    return replace(
        make_offpath(model, cores),
        name="offpath-granian",
        server="granian",
        needs=why_no_granian,
    )
