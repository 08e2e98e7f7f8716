"""Compares the settings in force for each model of a running TorchServe with its archive.

TorchServe takes batch size, delay, workers and time-outs from several places and says nothing
when it ignores one. Only the management API shows the values in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import MarFile
from offpath.errors import ExpectedError
from offpath.serving.finding import Finding, wrong
from offpath.serving.server.management import ManagementClient, ModelStatus

# Key of model-config.yaml -> attribute of ModelStatus.
MODEL_SETTINGS = {
    "batchSize": "batch_size",
    "maxBatchDelay": "max_batch_delay_ms",
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "responseTimeout": "response_timeout_s",
    "startupTimeout": "startup_timeout_s",
}
DEVICE = "deviceType"
WHOLE_NUMBERS = "TorchServe accepts whole numbers from 1 and ignores other values"
ENGINE_CURE = "build the archive on this machine, or for another --engine or --precision"
CPU_INSTEAD = "--allow-cpu serves it on the CPU, `offpath archive --preset cpu` builds for the CPU"


def is_ignored(value: object) -> bool:
    """Tells whether TorchServe ignores this value of one of `MODEL_SETTINGS`."""
    return type(value) is not int or value < 1


def find_differences(archive: MarFile, status: ModelStatus) -> Iterator[Finding]:
    """Yields a `wrong` finding for each setting that is not in force as the archive asks.

    An archive without model-config.yaml asks for nothing and never differs.
    """
    area = f"{status.model_name} {status.model_version}"
    config = archive.model_config or {}
    for setting, attribute in MODEL_SETTINGS.items():
        effective = getattr(status, attribute)
        if setting in config and config[setting] != effective:
            cause = _explain(setting, config)
            yield _differ(area, setting, effective, config[setting], cause)
    if config.get(DEVICE) == "gpu" and status.device == "cpu":
        yield _differ(area, DEVICE, "cpu", "gpu", _explain_cpu())


def check_in_force(
    archives: Iterable[tuple[str, MarFile]], management: ManagementClient, allow_cpu: bool = False
) -> list[ModelStatus]:
    """Returns the settings in force for each model, after comparing them with its archive.

    Args:
        archives: each archive with the name that its model is served under.
        allow_cpu: accept an archive that asks for a GPU and runs without one.

    Raises:
        ExpectedError: a model is missing, or a setting differs; the message lists all differences.
    """
    statuses, differences = [], []
    for name, archive in archives:
        found, version = management.describe(name), archive.model_version
        status = next((one for one in found if one.model_version == version), None)
        if status is None:
            raise ExpectedError(
                f"TorchServe did not load {archive.path}: {name} {version} is not registered"
            )
        if archive.has_our_handler:
            status = management.describe_worker(name, version)
        statuses.append(status)
        differences += [
            one
            for one in find_differences(archive, status)
            if not (allow_cpu and one.subject == DEVICE)
        ]
    if differences:
        listed = "".join(
            f"\n  {one.area}: {one.subject} is {one.found}; {one.cure}" for one in differences
        )
        raise ExpectedError(f"TorchServe does not serve as the archives ask:{listed}")
    return statuses


def _differ(area: str, setting: str, effective: object, wanted: object, cause: str) -> Finding:
    return wrong(area, setting, f"{effective}, the archive asks for {wanted!r}", cause)


def _explain(setting: str, config: Mapping[str, Any]) -> str:
    wanted = config[setting]
    if setting == "maxBatchDelay" and wanted == 0:
        return "TorchServe reads 0 as unset; use 1 ms for the shortest delay"
    if is_ignored(wanted):
        return WHOLE_NUMBERS
    if setting in ("minWorkers", "maxWorkers"):
        return _explain_workers(config)
    return (
        "the model was registered over the management API, whose parameters (batch_size, "
        "max_batch_delay, ...) win over the archive"
    )


def _explain_workers(config: Mapping[str, Any]) -> str:
    low, high = config.get("minWorkers"), config.get("maxWorkers")
    if not isinstance(low, int) or not isinstance(high, int) or high < low:
        return (
            "TorchServe uses minWorkers and maxWorkers only together, with 0 < minWorkers <= "
            "maxWorkers; otherwise it uses default_workers_per_model of config.properties or the "
            "number of cores"
        )
    return "the model was scaled over the management API"


def _explain_cpu() -> str:
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        why = "this host (or container) has no NVIDIA device"
    else:
        why = "TorchServe or torch found no device; check number_of_gpu, nvidia-smi and the driver"
    return f"{why}; {CPU_INSTEAD}; `offpath check` shows the host's state"
