"""A model whose workers each have a socket of their own."""

from __future__ import annotations

from dataclasses import dataclass

# How the names of workers' sockets begin.
WORKER = "worker-"


@dataclass(frozen=True)
class ServedModel:
    """One version of a model.

    Attributes:
        archive: path of the .mar.
        settings: the settings in force, with the keys of `DEFAULTS`.
        first_slot: number of its first worker; all workers of a server are numbered.
        is_default: paths without a version lead to it.
    """

    name: str
    version: str
    archive: str
    settings: dict[str, int]
    device: str | None
    device_ids: list[int]
    first_slot: int
    is_default: bool

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + self.settings["maxWorkers"])

    def share_queue(self, requests: int) -> int:
        """Returns one worker's share of the requests that may wait, at least one batch."""
        return max(self.settings["batchSize"], -(-requests // len(self.slots)))


def name_socket(slot: int) -> str:
    return f"{WORKER}{slot}.sock"
