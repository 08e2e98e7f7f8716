"""A model that a server is planned with; Granian's workers each have a socket of their own."""

from __future__ import annotations

from dataclasses import dataclass

from offpath.handler.serving_settings import ServingSettings

# How the names of workers' sockets begin.
WORKER = "worker-"


@dataclass(frozen=True)
class ServedModel:
    """One version of a model.

    Attributes:
        archive: path of the .mar.
        settings: the settings in force.
        first_slot: number of its first worker; all workers of a server are numbered.
        is_default: paths without a version lead to it.
        foreign_handler: the handler that its manifest names; empty for offpath's.
    """

    name: str
    version: str
    archive: str
    settings: ServingSettings
    first_slot: int
    is_default: bool
    foreign_handler: str = ""

    @property
    def is_ours(self) -> bool:
        return not self.foreign_handler

    @property
    def slots(self) -> range:
        """The numbers of its workers.

        There is no scaling: offpath's archives have the most workers, and others those that
        TorchServe would start.
        """
        settings = self.settings
        workers = settings.min_workers if self.foreign_handler else settings.workers
        return range(self.first_slot, self.first_slot + workers)

    def share_queue(self, requests: int) -> int:
        """Returns one worker's share of the requests that may wait, at least one batch."""
        return max(self.settings.batch_size, -(-requests // len(self.slots)))


def name_socket(slot: int) -> str:
    return f"{WORKER}{slot}.sock"
