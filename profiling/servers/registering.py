"""One TorchServe for many settings: they come and go over its register API, with fresh workers.

Batch size, delay and workers are arguments of `register`; threads stand in the archive's own
model-config.yaml, so each number of threads is an archive of its own (`registered_archive.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE
from offpath.profiling.core.experiment import RunAborted
from offpath.profiling.servers.archives import NAME
from offpath.profiling.servers.registered_archive import RegisteredArchive
from offpath.profiling.servers.torchserve import RunningTorchServe
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_settings import ServerSettings

# A worker's start, of which there may be one for each core and more.
REGISTER_TIMEOUT_S = 600.0
POLL_S = 0.1


class ServerDied(RunAborted):
    """TorchServe itself is gone: no further setting can be measured."""


@dataclass(frozen=True)
class Setting:
    """How a model is registered.

    Attributes:
        threads: per worker; 0 for an archive whose handler is not ours, which decides by itself.
    """

    batch_size: int
    max_batch_delay_ms: int
    workers: int
    threads: int

    def __str__(self) -> str:
        threads = f" x {self.threads} threads" if self.threads else ""
        return (
            f"batch {self.batch_size}, {self.max_batch_delay_ms} ms,"
            f" {self.workers} workers{threads}"
        )


def read_setting(
    config: Mapping[str, Any], cores: int, has_our_handler: bool = True
) -> Setting:
    """The setting that a model config stands for; automatic threads as their number."""
    handler = config.get("handler") or {}
    # handler/process/host_limits.py, threads_per_worker.
    threads = int(handler.get("threads") or 0) or max(
        1, cores // int(config["maxWorkers"])
    )
    return Setting(
        batch_size=int(config["batchSize"]),
        max_batch_delay_ms=int(config["maxBatchDelay"]),
        workers=int(config["minWorkers"]),
        threads=threads if has_our_handler else 0,
    )


class RegisteringServer:
    """A context manager: TorchServe with nothing but the setting of the moment.

    It is started with the archive as it is, so that one that does not load says so at once. Made-up
    load has no place in a prediction log: it is off.
    """

    def __init__(self, archive: RegisteredArchive) -> None:
        self._archive = archive
        self._server = TorchServe(
            ServerSettings(
                model_store=archive.store,
                models=(f"{NAME}={archive.mar.path.name}",),
                inference_port=0,
                management_port=0,
                metrics_port=0,
                enable_model_api=True,
                log_dir=archive.store / "logs",
                env={URI_VARIABLE: OFF},
            )
        )

    def __enter__(self) -> RegisteringServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @contextmanager
    def serving(self, setting: Setting) -> Iterator[tuple[RunningTorchServe, float]]:
        """Registers a setting with fresh workers; yields it and how long they took, in s.

        Its workers stay until the next setting's turn.

        Raises:
            ExpectedError: its workers do not start, or the server puts something else in force.
            ServerDied: TorchServe is gone.
        """
        try:
            ready_s = self._register(setting)
            yield RunningTorchServe(self._server), ready_s
        except ExpectedError as error:
            if not self._server.is_running():
                raise ServerDied(str(error)) from error
            raise

    def _register(self, setting: Setting) -> float:
        with ManagementClient(
            self._server.management_url, timeout_s=REGISTER_TIMEOUT_S
        ) as management:
            self._remove_all(management)
            begin_s = time.perf_counter()
            management.register(
                self._archive.with_threads(setting.threads),
                model_name=NAME,
                batch_size=setting.batch_size,
                max_batch_delay=setting.max_batch_delay_ms,
                initial_workers=setting.workers,
            )
            # model-config.yaml's workers beat `initial_workers`.
            if management.describe(NAME)[0].min_workers != setting.workers:
                management.scale(NAME, setting.workers)
            check_in_force(management, setting)
            return round(time.perf_counter() - begin_s, 2)

    def _remove_all(self, management: ManagementClient) -> None:
        """Unregisters what is there and waits until its workers are gone from the cores."""
        for name in management.list_models():
            management.unregister(name)
        deadline_s = time.monotonic() + REGISTER_TIMEOUT_S
        while self._server.worker_pids() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def check_in_force(management: ManagementClient, setting: Setting) -> None:
    """Raises ExpectedError unless the server serves as it was told: else that is measured."""
    status = management.describe(NAME)[0]
    wanted = (setting.batch_size, setting.max_batch_delay_ms, setting.workers)
    found = (status.batch_size, status.max_batch_delay_ms, status.ready_workers)
    if wanted != found:
        raise ExpectedError(
            "TorchServe does not serve as it was told: batch size, delay and ready workers are"
            f" {found}, expected {wanted}"
        )
