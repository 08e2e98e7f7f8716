"""The workers that a set of archives asks for: one slot per worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from offpath.archive.mar_file import MarFile, check_runs_alone
from offpath.archive.model_config import is_device_ids
from offpath.errors import WrongOption
from offpath.handler.process.host_limits import DEFAULT_RESPONSE_TIMEOUT_S
from offpath.serving.server.served_model import ServedModel

# Keys of model-config.yaml -> value without the key, or with one that TorchServe would ignore.
DEFAULTS = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 1,
    "maxBatchDelay": 100,
    "responseTimeout": DEFAULT_RESPONSE_TIMEOUT_S,
    "startupTimeout": DEFAULT_RESPONSE_TIMEOUT_S,
}

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
        config = archive.model_config or {}
        settings = {key: _read(config, key) for key in DEFAULTS}
        # There is no scaling: the largest number of workers runs from the start.
        settings["minWorkers"] = settings["maxWorkers"] = max(
            settings["minWorkers"], settings["maxWorkers"]
        )
        ids: Any = config.get("deviceIds")
        models.append(
            ServedModel(
                name,
                version,
                str(archive.path.resolve()),
                settings,
                config.get("deviceType"),
                ids if is_device_ids(ids) else [],
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


def _read(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else DEFAULTS[key]
