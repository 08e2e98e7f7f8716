"""One TorchServe for a whole search; candidates come and go over its register API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from offpath.handler.errors import ExpectedError
from offpath.handler.prediction_log.settings import OFF, URI_VARIABLE
from offpath.profiling.experiments.tuning.space import Candidate
from offpath.profiling.experiments.tuning.variants import TunedArchive
from offpath.profiling.servers.archives import NAME
from offpath.profiling.servers.torchserve import RunningTorchServe
from offpath.serving.management import ManagementClient
from offpath.serving.settings import ServerSettings
from offpath.serving.torchserve import TorchServe

# A worker's start, of which there may be one for each core and more.
REGISTER_TIMEOUT_S = 600.0
POLL_S = 0.1


class ServerDied(ExpectedError):
    """TorchServe itself is gone: no further candidate can be measured."""


class TuningServer:
    """A context manager: TorchServe with nothing but the candidate of the moment.

    It is started with the archive as it is, so that one that does not load says so at once. Made-up
    load has no place in a prediction log: it is off.
    """

    def __init__(self, archive: TunedArchive) -> None:
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

    def __enter__(self) -> TuningServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @contextmanager
    def serving(
        self, candidate: Candidate
    ) -> Iterator[tuple[RunningTorchServe, float]]:
        """Registers a candidate with fresh workers; yields it and how long they took, in s.

        Its workers stay until the next candidate's turn.

        Raises:
            ExpectedError: its workers do not start, or the server puts something else in force.
            ServerDied: TorchServe is gone.
        """
        try:
            with self._registered(candidate) as registered:
                yield registered
        except ExpectedError as error:
            if not self._server.is_running():
                raise ServerDied(str(error)) from error
            raise

    @contextmanager
    def _registered(
        self, candidate: Candidate
    ) -> Iterator[tuple[RunningTorchServe, float]]:
        with self._management() as management:
            self._remove_all(management)
            begin = time.perf_counter()
            management.register(
                self._archive.with_threads(candidate.threads),
                model_name=NAME,
                batch_size=candidate.batch_size,
                max_batch_delay=candidate.max_batch_delay_ms,
                initial_workers=candidate.workers,
            )
            # model-config.yaml's workers beat `initial_workers`.
            if management.describe(NAME)[0].min_workers != candidate.workers:
                management.scale(NAME, candidate.workers)
            check_in_force(management, candidate)
            ready_s = round(time.perf_counter() - begin, 2)
            yield RunningTorchServe(self._server), ready_s

    def _management(self) -> ManagementClient:
        return ManagementClient(
            self._server.management_url, timeout_s=REGISTER_TIMEOUT_S
        )

    def _remove_all(self, management: ManagementClient) -> None:
        """Unregisters what is there and waits until its workers are gone from the cores."""
        for name in management.list_models():
            management.unregister(name)
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        while self._server.worker_pids() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def check_in_force(management: ManagementClient, candidate: Candidate) -> None:
    """Raises ExpectedError unless the server serves as the candidate says: else it is measured."""
    status = management.describe(NAME)[0]
    wanted = (candidate.batch_size, candidate.max_batch_delay_ms, candidate.workers)
    found = (status.batch_size, status.max_batch_delay_ms, status.ready_workers)
    if wanted != found:
        raise ExpectedError(
            "TorchServe does not serve as it was told: batch size, delay and ready workers are"
            f" {found}, expected {wanted}"
        )
