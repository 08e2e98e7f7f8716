"""TorchServe and Granian under test, with or without the front door.

Both run our archive and the stock handler's; TorchServe also runs a typical first handler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.handler.serving_settings import name_keys
from offpath.profiling.load.generators import Call
from offpath.profiling.load.load_window import BESIDE, Groups, RunningServer
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers import archives
from offpath.profiling.servers.put_store import (
    PREDICTION_LOG,
    PUT_LATENCY_MS,
    Beside,
    run_put_store,
)
from offpath.profiling.servers.server_adapter import BATCH_SIZE, Adapter
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.process.interrupts import Hangup
from offpath.serving.process.processes import find_fork_helpers
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import Session, View
from offpath.serving.starting import check_ready, start_server
from offpath.serving.torchserve.launch import find_java

# The store's one archive.
ARCHIVE = f"{archives.NAME}.mar"
# The group of the fork server and the workers' launchers, see serving/fork/fork_server.py.
FORK_HELPERS = "fork helpers"
# Free ports; all clients of a benchmark share one address.
DOOR = DoorSettings(port=0, metrics_port=0, client_connections=10_000)
# Group of the door's processes, which counts with the front end and is also shown alone.
NGINX = "nginx"


def describe_running(
    server: Server, door: Door | None, beside: Beside, began_s: float
) -> RunningServer:
    """Describes a ready TorchServe or Granian, perhaps behind a door."""

    def groups() -> Groups:
        nginx = door and door.nginx
        optional = {
            FORK_HELPERS: find_fork_helpers(server.pid),  # none with Granian
            BESIDE: list(beside.pids),
            NGINX: [nginx.pid, *nginx.worker_pids()] if nginx else [],
        }
        return {
            "frontend": [server.pid],
            "workers": server.worker_pids(),
            **{name: pids for name, pids in optional.items() if pids},
        }

    return RunningServer(
        f"{server.inference_url if door is None else door.url}/predictions/{archives.NAME}",
        groups,
        lambda: server.is_running() and (door is None or door.nginx.is_running()),
        server.log_path,
        began_s,
    )


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
        has_store: start a stand-in for S3 beside the server.
        has_door: start our front door, nginx, before the server.
        models: how many models have this archive; requests go to them in turn.
    """

    name: str
    build: Callable[[Mapping[str, Any], Path], Path]
    archive_settings: Mapping[str, Any] = field(default_factory=dict)
    server: str = "torchserve"
    stock: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = BATCH_SIZE
    has_store: bool = False
    has_door: bool = False
    models: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        store = {"s3": "a stand-in on loopback", "put_ms": PUT_LATENCY_MS}
        return {
            "archive": self.config,
            **({} if self.server == "torchserve" else {"server": self.server}),
            "stock": self.stock,
            "fork_workers": not self.stock,
            "overrides": dict(self.overrides),
            "env": dict(self.env),
            **(store if self.has_store else {}),
            **({"front": f"nginx {find_nginx().version_text}"} if self.has_door else {}),
            **({"models": self.models} if self.models > 1 else {}),
        }

    @property
    def names(self) -> list[str]:
        return [archives.NAME, *(f"{archives.NAME}{n}" for n in range(2, self.models + 1))]

    @property
    def call(self) -> Call:
        return Call(more_paths=tuple(f"/predictions/{name}" for name in self.names[1:]))

    @property
    def config(self) -> dict[str, Any]:
        """The model-config.yaml that the .mar gets; empty for none."""
        if not self.archive_settings:
            return {}
        return {**self.archive_settings, **name_keys(batch_size=self.batch_size)}

    def why_not(self) -> str | None:
        try:
            if self.has_door:
                find_nginx()
            if self.server == "torchserve":
                find_java()
        except ExpectedError as error:
            return str(error)
        if self.server == "granian" and not (find_spec("granian") and find_spec("uvloop")):
            return "granian or uvloop is not installed: pip install 'torchserve-offpath[granian]'"
        return None

    def prepare(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.build(self.config, folder)

    @contextmanager
    def running(self, folder: Path) -> Iterator[RunningServer]:
        beside_it = run_put_store() if self.has_store else nullcontext(Beside())
        with beside_it as beside, ExitStack() as stack:
            began_s, settings = time.perf_counter(), self._make_settings(folder, beside)
            if self.has_door:
                session = Session(lambda _: settings, View(), Hangup(), DOOR)
                stack.callback(session.stop)
                session.start()
                yield describe_running(session.rotation.current, session.door, beside, began_s)
            else:
                server = start_server(settings)
                stack.callback(server.stop)
                check_ready(server)
                yield describe_running(server, None, beside, began_s)

    def _make_settings(self, store: Path, beside: Beside) -> ServerSettings:
        return ServerSettings(
            model_store=store,
            models=tuple(f"{name}={ARCHIVE}" for name in self.names),
            server=self.server,
            stock=self.stock,
            inference_port=0,
            metrics_port=0,
            log_dir=store / "logs",
            overrides=self.overrides,
            env={**self.env, **beside.env},
        )


# Writes the .mar of a model with some settings into a folder.
BuildModel = Callable[[ModelUnderTest, Mapping[str, Any], Path], Path]
# Makes a server under test of a model and a number of cores.
Make = Callable[[ModelUnderTest, int], TorchServeAdapter]


def ours(name: str, **settings: Any) -> Make:
    """Returns the maker of our archive with the host's preset, and our config.properties."""

    def make(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
        log = {"prediction_log": PREDICTION_LOG} if settings.get("has_store") else {}
        config = archives.offpath_config(model, cores, **log)
        return TorchServeAdapter(name, partial(archives.build_offpath, model), config, **settings)

    return make


def as_it_is(name: str, build: BuildModel, **settings: Any) -> Make:
    """Returns the maker of another handler's archive on a server's defaults, without batches."""
    return lambda model, _: TorchServeAdapter(name, partial(build, model), stock=True, **settings)


def make_stock_fixed(model: ModelUnderTest, cores: int) -> TorchServeAdapter:
    """The stock image_classifier with our batch settings, one thread per worker and a fit JVM."""
    config = archives.offpath_config(model, cores)
    del config["handler"]
    return TorchServeAdapter(
        "torchserve-fixed",
        partial(archives.build_stock, model),
        config,
        stock=True,
        overrides={"vmargs": "-Xms2g -Xmx2g -XX:+UseParallelGC"},
        env={"OMP_NUM_THREADS": "1"},
    )
