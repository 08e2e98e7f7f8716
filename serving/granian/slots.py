"""The workers that a set of archives asks for: one slot per worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from offpath.archive.mar_file import MarFile, check_runs_alone
from offpath.errors import WrongOption
from offpath.serving.server.served_model import ServedModel

# The supervisor gets the plan of all workers as one message, for which Linux has 208 kB.
MOST_WORKERS = 256
# Also safe in nginx.conf.
NAME = re.compile("[A-Za-z0-9._-]{1,64}")


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
