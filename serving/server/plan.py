"""The plan of a server: which models with which settings will run, known before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offpath.archive.mar_file import LABELS_CURE, NO_LABELS, MarFile, read_archives
from offpath.errors import WrongOption
from offpath.serving.finding import Finding, State, lost
from offpath.serving.server.properties import (
    HONOURED,
    Properties,
    find_config,
    load_properties,
    read_properties,
)
from offpath.serving.server.served_model import ServedModel
from offpath.serving.server.server_settings import ServerSettings

# The supervisor gets the plan of all workers as one message, for which Linux has 208 kB.
MAX_WORKERS = 256
# Also safe in nginx.conf.
NAME = re.compile("[A-Za-z0-9._-]{1,64}")
# Requests of a model that Granian may hold where nobody has set a number: memory and the predicted
# wait are the limits.
GRANIAN_QUEUE = 10_000
# TorchServe's key for the handler of archives that name none.
DEFAULT_HANDLER = "default_service_handler"
# Keys of model-config.yaml for what only TorchServe's Java part can do.
JAVA_KEYS = {
    "parallelType": "a model in several processes (torchrun)",
    "asyncCommunication": "replies in another order than the requests",
    "continuousBatching": "requests that join a running batch",
    "sequenceBatching": "requests of a sequence to one worker",
    "sequenceMaxIdleMSec": "requests of a sequence to one worker",
}


@dataclass(frozen=True)
class ServePlan:
    """One server before it runs; config.properties and Granian's plan are made from it.

    Attributes:
        models: in the order in which they are served.
        queue: requests of a model that may wait in the server.
        notes: what its archives and its properties leave unused.
    """

    settings: ServerSettings
    properties: Properties
    models: tuple[ServedModel, ...]
    queue: int
    notes: tuple[Finding, ...]

    @property
    def is_granian(self) -> bool:
        return self.settings.server == "granian"

    @property
    def names(self) -> list[str]:
        # A name may have several versions.
        return list(dict.fromkeys(model.name for model in self.models))

    @property
    def routes(self) -> tuple[ServedModel, ...]:
        """The models with sockets of their own; empty for TorchServe, which finds them itself."""
        return self.models if self.is_granian else ()

    def check_needs_no_door(self) -> None:
        """Raises WrongOption if only a front door can choose a request's workers."""
        if len(self.routes) > 1:
            raise WrongOption(
                f"{len(self.routes)} archives on Granian need the front door, which chooses the "
                "worker by the path; use --front, or serve one archive"
            )

    def describe(self) -> dict[str, Any]:
        """Returns what an operator wants to know before the start."""
        settings = self.settings
        return {
            "server": settings.server,
            "host": settings.host,
            "port": settings.inference_port,
            "metrics_port": settings.metrics_port,
            "management_port": settings.management_port,
            "queue": self.queue,
            "max_body_bytes": self.properties.max_request_size,
            "logs": str(settings.log_dir or ""),
            "models": [
                {
                    "name": model.name,
                    "version": model.version,
                    "archive": model.archive,
                    "handler": model.foreign_handler or "offpath",
                    **model.settings.list_numbers(),
                }
                for model in self.models
            ],
            "notes": [note.text for note in self.notes],
        }


def plan_server(settings: ServerSettings) -> ServePlan:
    """Reads archives and properties, and plans a server of them.

    Raises:
        WrongOption: an archive or the properties cannot be read, or do not fit the server.
    """
    config = None if settings.stock else settings.config or find_config()
    properties = load_properties(config, settings.overrides)
    archives = read_archives(settings.model_store, settings.models)
    models: list[ServedModel] = []
    for name, archive in archives:
        models.append(_plan_model(settings, properties, models, name, archive))
    notes = [*_note_ignored(settings, properties)]
    for (_, archive), model in zip(archives, models):
        notes += note_gaps(archive, bool(archive.model_config or model.settings.asked))
    is_set = settings.config is not None or "job_queue_size" in settings.overrides
    # Our own file's number is meant for bodies in Java's heap.
    has_room = settings.server == "granian" and not is_set
    queue = GRANIAN_QUEUE if has_room else properties.job_queue_size
    return ServePlan(settings, properties, tuple(models), queue, tuple(notes))


def _plan_model(
    settings: ServerSettings,
    properties: Properties,
    before: Sequence[ServedModel],
    name: str,
    archive: MarFile,
) -> ServedModel:
    """Numbers the workers of an archive behind those of the models before it."""
    is_granian, is_ours = settings.server == "granian", archive.has_our_handler
    version, in_force = archive.model_version, properties.choose_settings(archive, name)
    if not (in_force.names_workers or is_ours and is_granian):
        workers = properties.count_default_workers()
        in_force = replace(in_force, min_workers=workers, max_workers=workers)
    model = ServedModel(
        name,
        version,
        str(archive.path.absolute()),
        in_force,
        before[-1].slots.stop if before else 0,
        all(one.name != name for one in before),
        "" if is_ours else archive.handler or DEFAULT_HANDLER,
    )
    if not is_granian:
        return model
    check_needs_no_java(archive)
    if not (NAME.fullmatch(name) and NAME.fullmatch(version)):
        raise WrongOption(
            f"{archive.path} holds {name!r} {version!r}; a path of Granian's needs names of "
            "letters, digits and ._-; choose one with NAME=PATH.mar"
        )
    if model.slots.stop > MAX_WORKERS:
        raise WrongOption(
            f"{archive.path} asks for worker number {model.slots.stop}; one Granian has at most "
            f"{MAX_WORKERS}, so lower maxWorkers, or start another server"
        )
    return model


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


def _note_ignored(settings: ServerSettings, properties: Properties) -> Iterator[Finding]:
    """Yields the keys of a user's properties that Granian ignores."""
    if settings.server == "granian" and settings.config is not None:
        given, ours = properties.given, read_properties(find_config())
        keys = [key for key in given if key not in HONOURED and given[key] != ours.get(key)]
        if keys:
            found = f"Granian ignores {', '.join(keys)}"
            yield Finding(str(settings.config), "properties", State.LOST, found)


def note_gaps(archive: MarFile, has_settings: bool) -> Iterator[Finding]:
    """Yields what an archive is served without: settings, optimisation or labels."""
    file = archive.path.name
    convert = f"offpath archive --from {archive.path}"
    if not has_settings:
        found = "no model-config.yaml to compare with: batch size 1 unless something else sets one"
        yield lost(file, "batch settings", found, convert)
    if not archive.has_our_handler:
        cure = f"`{convert}` makes a faster one" if archive.handler == "image_classifier" else ""
        yield lost(file, "handler", "served as it is, not optimised", cure)
    if archive.lacks_labels:
        yield lost(file, "labels", NO_LABELS, LABELS_CURE)
