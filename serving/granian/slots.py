"""The workers that a set of archives asks for: one slot per worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from offpath.archive.mar_file import MarFile
from offpath.errors import WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.server.served_model import ServedModel

# The supervisor gets the plan of all workers as one message, for which Linux has 208 kB.
MAX_WORKERS = 256
# Also safe in nginx.conf.
NAME = re.compile("[A-Za-z0-9._-]{1,64}")


# Keys of model-config.yaml for what only TorchServe's Java part can do.
JAVA_KEYS = {
    "parallelType": "a model in several processes (torchrun)",
    "asyncCommunication": "replies in another order than the requests",
    "continuousBatching": "requests that join a running batch",
    "sequenceBatching": "requests of a sequence to one worker",
    "sequenceMaxIdleMSec": "requests of a sequence to one worker",
}


def plan_models(
    archives: Sequence[tuple[str, MarFile]], default_workers: Callable[[], int] = count_cores
) -> list[ServedModel]:
    """Numbers the workers of archives, each given with the name that its model is served under.

    Args:
        default_workers: returns the number for an archive that is not offpath's and names none.

    Raises:
        WrongOption: an archive asks for what only Java can do, it has a name that no path can
            hold, or there are too many workers.
    """
    models: list[ServedModel] = []
    next_slot = 0
    for name, archive in archives:
        check_needs_no_java(archive)
        version = archive.model_version
        if not (NAME.fullmatch(name) and NAME.fullmatch(version)):
            raise WrongOption(
                f"{archive.path} holds {name!r} {version!r}; a path of Granian's needs names of "
                "letters, digits and ._-; choose one with NAME=PATH.mar"
            )
        settings = choose_settings(archive, default_workers)
        models.append(
            ServedModel(
                name,
                version,
                str(archive.path.resolve()),
                settings,
                next_slot,
                all(model.name != name for model in models),
                "" if archive.has_our_handler else archive.handler,
            )
        )
        next_slot = models[-1].slots.stop
        if next_slot > MAX_WORKERS:
            raise WrongOption(
                f"{archive.path} asks for worker number {next_slot}; one Granian has at most "
                f"{MAX_WORKERS}, so lower maxWorkers, or start another server"
            )
    return models


def check_needs_no_java(archive: MarFile) -> None:
    """Raises WrongOption if an archive asks for what only TorchServe's Java part can do."""
    if archive.has_our_handler:
        return
    for key, what in JAVA_KEYS.items():
        if (archive.model_config or {}).get(key):
            raise WrongOption(
                f"{archive.path} asks for {key}: {what}, which only TorchServe has; use --server "
                "torchserve"
            )
    if archive.manifest.get("runtime") == "LSP":
        raise WrongOption(f"{archive.path} has a handler in C++, which only TorchServe runs")
    if not archive.handler:
        raise WrongOption(f"{archive.path} names no handler in its manifest")


def choose_settings(archive: MarFile, default_workers: Callable[[], int]) -> ServingSettings:
    """Returns an archive's settings, with the default workers if other people's names none."""
    settings = replace(archive.serving, asked={})
    if archive.has_our_handler or archive.serving.names_workers:
        return settings
    workers = default_workers()
    return replace(settings, min_workers=workers, max_workers=workers)
