"""The workers that a set of archives asks for: one slot per worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from offpath.archive.mar_file import MarFile, check_runs_alone
from offpath.errors import WrongOption
from offpath.handler.serving_settings import ServingSettings

# The supervisor gets the plan of all workers as one message, for which Linux has 208 kB.
MOST_WORKERS = 256
# Also safe in nginx.conf.
NAME = re.compile("[A-Za-z0-9._-]{1,64}")
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
    """

    name: str
    version: str
    archive: str
    settings: ServingSettings
    first_slot: int
    is_default: bool

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + self.settings.workers)

    def share_queue(self, requests: int) -> int:
        """Returns one worker's share of the requests that may wait, at least one batch."""
        return max(self.settings.batch_size, -(-requests // len(self.slots)))


def name_socket(slot: int) -> str:
    return f"{WORKER}{slot}.sock"


def plan_models(archives: Sequence[tuple[str, MarFile]]) -> list[ServedModel]:
    """Numbers the workers of archives, each given with the name that its model is served under.

    Raises:
        WrongOption: an archive has another handler or a name that no path can hold, or there are
            too many workers.
    """
    models: list[ServedModel] = []
    next_slot = 0
    for name, archive in archives:
        check_runs_alone(archive)
        version = archive.model_version
        if not (NAME.fullmatch(name) and NAME.fullmatch(version)):
            raise WrongOption(
                f"{archive.path} holds {name!r} {version!r}; a path of Granian's needs names of "
                "letters, digits and ._-; choose one with NAME=PATH.mar"
            )
        # There is no scaling: the largest number of workers runs from the start.
        workers = archive.serving.workers
        settings = replace(archive.serving, min_workers=workers, max_workers=workers, asked={})
        models.append(
            ServedModel(
                name,
                version,
                str(archive.path.resolve()),
                settings,
                next_slot,
                all(model.name != name for model in models),
            )
        )
        next_slot = models[-1].slots.stop
        if next_slot > MOST_WORKERS:
            raise WrongOption(
                f"{archive.path} asks for worker number {next_slot}; one Granian has at most "
                f"{MOST_WORKERS}, so lower maxWorkers, or start another server"
            )
    return models
