"""TorchServe under test, with an archive; which ones: `torchserve_variants.py`."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.model.engines.artefacts import FOLDER as ENGINE_FOLDER
from offpath.profiling.load.call import Call
from offpath.profiling.load.limits import OwnForward
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, BESIDE
from offpath.profiling.servers import archives
from offpath.profiling.servers.launched import on_free_ports
from offpath.profiling.servers.s3_store import Beside
from offpath.serving.process.processes import find_fork_helpers
from offpath.serving.torchserve.java import find_java
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_settings import ServerSettings
from offpath.serving.torchserve.warm_up import warm_up

# The store's one archive.
ARCHIVE = f"{archives.NAME}.mar"


SCALE_S = 120.0


# Group of the fork server and the workers' launchers; see serving/fork/fork_server.py.
FORK_HELPERS = "fork helpers"


class RunningTorchServe:
    """A ready TorchServe; its process groups are Java and the Python workers.

    Attributes:
        began_s: when it was started (`time.perf_counter`), where something else was before.
    """

    def __init__(
        self,
        server: TorchServe,
        beside: Beside = Beside(),
        began_s: float | None = None,
    ) -> None:
        self._server, self._beside = server, beside
        self.began_s = began_s
        self.predict_url = f"{server.inference_url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        """See `RunningServer`."""
        helpers = find_fork_helpers(self._server.java_pid)
        return {
            "frontend": [self._server.java_pid],
            "workers": self._server.worker_pids(),
            **({FORK_HELPERS: helpers} if helpers else {}),
            **({BESIDE: list(self._beside.pids)} if self._beside.pids else {}),
        }

    def scale(self, workers: int) -> None:
        """Sets the number of workers and waits until they are READY."""
        with ManagementClient(self._server.management_url, timeout_s=SCALE_S) as api:
            api.scale(archives.NAME, workers)

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return self._server.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._server.log_path


@contextmanager
def run_nothing() -> Iterator[Beside]:
    """Most servers need nothing beside them."""
    yield Beside()


@dataclass
class TorchServeUnderTest:
    """One way to run TorchServe.

    Attributes:
        build: writes the .mar with some settings into a folder.
        archive_settings: what the .mar asks for; empty: TorchServe's defaults, batch size 1.
        batch_size: see `ServerUnderTest`; wins over `archive_settings`.
        stock: without our config.properties and log settings.
        fork_workers: workers are forked from one process that has imported torch; not with `stock`.
        beside: what runs beside it, and what the result says of that.
        beside_settings: see `beside`.
        needs: why not, beyond Java.
    """

    name: str
    build: Callable[[Path, Mapping[str, Any]], Path]
    archive_settings: Mapping[str, Any] = field(default_factory=dict)
    stock: bool = False
    fork_workers: bool = True
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
        """See `ServerUnderTest`."""
        return {
            "archive": self.config,
            "stock": self.stock,
            "fork_workers": self.fork_workers and not self.stock,
            "overrides": dict(self.overrides),
            "env": dict(self.env),
            **self.beside_settings,
            **({"engine": self.engine} if self.engine else {}),
        }

    @property
    def engine(self) -> str | None:
        """The engine and precision that our archive asks for; None for somebody else's."""
        if "handler" not in self.archive_settings:
            return None
        asked = self.archive_settings["handler"]
        names = asked.get("engine", "auto"), asked.get("precision", "auto")
        return " ".join(dict.fromkeys(names))

    @property
    def own_forward(self) -> OwnForward | None:
        """What this server's share of its own limit is measured with, once prepared."""
        if self.engine is None or self._store is None:
            return None
        folder = self._store / ENGINE_FOLDER
        handler = self.archive_settings["handler"]
        return OwnForward(self.engine, handler, folder if folder.is_dir() else None)

    @property
    def config(self) -> dict[str, Any]:
        """What the .mar asks for."""
        if not self.archive_settings:
            return {}
        return {**self.archive_settings, "batchSize": self.batch_size}

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        try:
            find_java()
        except ExpectedError as error:
            return str(error)
        return self.needs()

    def prepare(self, folder: Path) -> None:
        """See `ServerUnderTest`."""
        folder.mkdir(parents=True)
        archive = self.build(folder, self.config)
        with zipfile.ZipFile(archive) as content:
            # For the limit: the worker has its own copy.
            content.extractall(
                folder,
                [n for n in content.namelist() if n.startswith(f"{ENGINE_FOLDER}/")],
            )
        self._store = folder

    def running(self) -> AbstractContextManager[RunningTorchServe]:
        """See `ServerUnderTest`."""
        return on_free_ports(self._start)

    @contextmanager
    def _start(self) -> Iterator[RunningTorchServe]:
        if self._store is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        with self.beside() as beside:
            began_s = time.perf_counter()
            with TorchServe(self._make_settings(self._store, beside)) as server:
                if not self.stock:
                    # `offpath serve` announces a server after this.
                    workers = int(self.archive_settings.get("minWorkers", 1))
                    warm_up(server.inference_url, archives.NAME, workers)
                yield RunningTorchServe(server, beside, began_s)

    def _make_settings(self, store: Path, beside: Beside) -> ServerSettings:
        return ServerSettings(
            model_store=store,
            models=(ARCHIVE,),
            stock=self.stock,
            fork_workers=self.fork_workers,
            inference_port=0,
            management_port=0,
            metrics_port=0,
            log_dir=store / "logs",
            overrides=self.overrides,
            env={**self.env, **beside.env},
        )
