"""Our server behind its front door: what `offpath serve --front` starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.servers import archives
from offpath.profiling.servers.torchserve import RunningTorchServe, TorchServeUnderTest
from offpath.profiling.servers.torchserve_variants import make_offpath_direct
from offpath.serving.front.binary import find_nginx
from offpath.serving.front.session import FrontSession
from offpath.serving.front.settings import FrontSettings
from offpath.serving.key_file import KeyFile
from offpath.serving.management import ModelStatus
from offpath.serving.prediction import Prediction
from offpath.serving.server_log import LogLine

# Free ports; every client of a benchmark is one address.
DOOR = FrontSettings(port=0, metrics_port=0, client_connections=10_000)


class SilentView:
    """Nobody is told."""

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        """See `View`."""
        return nullcontext()

    def show_ready(
        self, urls: Mapping[str, str], statuses: Sequence[ModelStatus], ready_s: float
    ) -> None:
        """See `View`."""

    def show_unchecked(self, names: Sequence[str]) -> None:
        """See `View`."""

    def show_prediction(self, photograph: Path, prediction: Prediction) -> None:
        """See `View`."""

    def show_usage(
        self, inference_url: str, model_name: str, keys: KeyFile | None = None
    ) -> None:
        """See `View`."""

    def show_log_line(self, line: LogLine) -> None:
        """See `View`."""

    def show_problem(self, text: str) -> None:
        """See `View`."""


class RunningBehindDoor(RunningTorchServe):
    """A ready TorchServe behind a door; nginx belongs to its front end."""

    def __init__(self, session: FrontSession, began_s: float) -> None:
        super().__init__(session.rotation.current, began_s=began_s)
        self._door = session.door
        self.predict_url = f"{session.door.url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        """See `RunningServer`."""
        groups = super().groups()
        nginx = [self._door.nginx.pid, *self._door.nginx.worker_pids()]
        return {**groups, "frontend": [*groups["frontend"], *nginx]}

    def scale(self, workers: int) -> None:
        """Sets the number of workers and waits until they are READY."""
        with self._server.management() as api:
            api.scale(archives.NAME, workers)

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return super().is_running() and self._door.nginx.is_running()


@dataclass
class BehindDoorUnderTest(TorchServeUnderTest):
    """Our archive behind the front door."""

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return super().settings | {"front": f"nginx {find_nginx().version_text}"}

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        try:
            find_nginx()
        except ExpectedError as error:
            return str(error)
        return super().why_not()

    @contextmanager
    def _start(self) -> Iterator[RunningTorchServe]:
        if self._store is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        store = self._store
        began_s = time.perf_counter()
        with self.beside() as beside:
            session = FrontSession(
                lambda: self._make_settings(store, beside), DOOR, SilentView()
            )
            try:
                session.start()
                yield RunningBehindDoor(session, began_s)
            finally:
                session.stop()


def make_offpath(model: ModelUnderTest, cores: int) -> BehindDoorUnderTest:
    """The same archive as `offpath-direct`, with nginx before TorchServe."""
    direct = make_offpath_direct(model, cores)
    return BehindDoorUnderTest("offpath", direct.build, direct.archive_settings)
