"""Compares the settings in force for each model of a running server with its archive.

TorchServe takes batch size, delay, workers and time-outs from several places and says nothing
when it ignores one. Only the management API shows the values in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.handler.serving_settings import KEYS, RANGES, ServingSettings
from offpath.serving.finding import Finding, wrong
from offpath.serving.server.management import ManagementClient, ModelStatus
from offpath.serving.server.served_model import ServedModel

DEVICE, LOG = KEYS["device_type"], "prediction log"
WHOLE_NUMBERS = "only whole numbers from 1 count"
ENGINE_CURE = "build the archive on this machine, or for another --engine or --precision"
SPOOL_CURE = "make room, or set OFFPATH_SPOOL_DIR; `offpath serve --lenient` starts without it"
CPU_INSTEAD = "--allow-cpu serves it on the CPU, `offpath archive --preset cpu` builds for the CPU"


def find_differences(settings: ServingSettings, status: ModelStatus) -> Iterator[Finding]:
    """Yields a `wrong` finding for each setting that is asked for and not in force."""
    area = f"{status.model_name} {status.model_version}"
    for name in filter(settings.asked.__contains__, RANGES):
        wanted, effective = settings.asked[name], getattr(status, name)
        if wanted != effective:
            found = f"{effective}, the archive asks for {wanted!r}"
            yield wrong(area, KEYS[name], found, _explain(name, settings))
    if settings.device_type == "gpu" and status.device == "cpu":
        yield wrong(area, DEVICE, "cpu, the archive asks for 'gpu'", _explain_cpu())


def find_log_problem(status: ModelStatus) -> Iterator[Finding]:
    """Yields a `wrong` finding if no record can be written to the spool of a prediction log."""
    if why := status.described.get("log_problem"):
        found = f"lost, because the spool {status.described.get('spool')} cannot be written: {why}"
        yield wrong(f"{status.model_name} {status.model_version}", LOG, found, SPOOL_CURE)


def check_in_force(
    models: Iterable[ServedModel],
    management: ManagementClient,
    allow_cpu: bool = False,
    lenient: bool = False,
) -> list[ModelStatus]:
    """Returns the settings in force for each model, after comparing them with the planned ones.

    Args:
        allow_cpu: accept an archive that asks for a GPU and runs without one.
        lenient: accept a prediction log that cannot be written.

    Raises:
        ExpectedError: a model is missing, or a setting differs; the message lists all differences.
    """
    statuses, differences = [], []
    accepted = {DEVICE: allow_cpu, LOG: lenient}
    for model in models:
        name, version = model.name, model.version
        found = management.describe(name)
        status = next((one for one in found if one.model_version == version), None)
        if status is None:
            raise ExpectedError(
                f"the server did not load {model.archive}: {name} {version} is not registered"
            )
        if model.is_ours:
            status = management.describe_worker(name, version)
        statuses.append(status)
        differences += [
            one
            for one in [*find_differences(model.settings, status), *find_log_problem(status)]
            if not accepted.get(one.subject)
        ]
    if differences:
        listed = "".join(
            f"\n  {one.area}: {one.subject} is {one.found}; {one.cure}" for one in differences
        )
        raise ExpectedError(f"the server does not serve as the archives ask:{listed}")
    return statuses


def _explain(name: str, settings: ServingSettings) -> str:
    if name == "max_batch_delay_ms" and settings.asked[name] == 0:
        return "0 counts as unset; use 1 ms for the shortest delay"
    if name in settings.ignored:
        return WHOLE_NUMBERS
    if name in ("min_workers", "max_workers"):
        return _explain_workers(settings.asked)
    return (
        "the model was registered over the management API, whose parameters (batch_size, "
        "max_batch_delay, ...) win over the archive"
    )


def _explain_workers(asked: Mapping[str, Any]) -> str:
    low, high = asked.get("min_workers"), asked.get("max_workers")
    if not isinstance(low, int) or not isinstance(high, int) or high < low:
        return (
            "minWorkers and maxWorkers count only together, with 0 < minWorkers <= maxWorkers; "
            "otherwise default_workers_per_model of config.properties or the number of cores does"
        )
    return "the model was scaled over the management API"


def _explain_cpu() -> str:
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        why = "this host (or container) has no NVIDIA device"
    else:
        why = "the server or torch found no device; check number_of_gpu, nvidia-smi and the driver"
    return f"{why}; {CPU_INSTEAD}; `offpath check` shows the host's state"
