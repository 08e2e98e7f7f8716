"""Compares what an archive asks for with what TorchServe has put in force.

TorchServe takes batch size, delay, workers and time-outs from several places and says nothing
when it ignores one; only the management API tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.serving.mar_file import MarFile
from offpath.serving.torchserve.management import ManagementClient, ModelStatus

# Key of model-config.yaml -> attribute of ModelStatus.
CHECKED_SETTINGS = {
    "batchSize": "batch_size",
    "maxBatchDelay": "max_batch_delay_ms",
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "responseTimeout": "response_timeout_s",
    "startupTimeout": "startup_timeout_s",
}
DEVICE = "deviceType"


@dataclass(frozen=True)
class Difference:
    """One setting that is not in force as its archive asks."""

    model_name: str
    model_version: str
    setting: str
    wanted: object
    effective: object
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.model_name} {self.model_version}: {self.setting} is {self.effective}, "
            f"the archive asks for {self.wanted!r}; {self.cause}"
        )


def find_status(statuses: Iterable[ModelStatus], version: str) -> ModelStatus | None:
    """Returns the status of one version of a model."""
    for status in statuses:
        if status.model_version == version:
            return status
    return None


def find_differences(archive: MarFile, status: ModelStatus) -> list[Difference]:
    """Compares one archive with one model in force; no model-config.yaml: nothing to compare."""
    config = archive.model_config or {}
    differences = []
    for setting, attribute in CHECKED_SETTINGS.items():
        effective = getattr(status, attribute)
        if setting in config and config[setting] != effective:
            cause = _explain(setting, config, effective)
            differences.append(
                Difference(
                    status.model_name,
                    status.model_version,
                    setting,
                    config[setting],
                    effective,
                    cause,
                )
            )
    if config.get("deviceType") == "gpu" and status.device == "cpu":
        name, version = status.model_name, status.model_version
        differences.append(
            Difference(name, version, DEVICE, "gpu", "cpu", _explain_cpu())
        )
    return differences


def check_effective(
    archives: Iterable[tuple[str, MarFile]],
    management: ManagementClient,
    allow_cpu: bool = False,
) -> list[ModelStatus]:
    """Returns what is in force for each model, after comparing it with its archive.

    Args:
        archives: each archive with the name that its model is served under.
        management: client of the server.
        allow_cpu: an archive that asks for a GPU may be served without one.

    Raises:
        ExpectedError: a model is missing, or a setting differs; all differences are listed.
    """
    statuses, differences = [], []
    for name, archive in archives:
        status = find_status(management.describe(name), archive.model_version)
        if status is None:
            raise ExpectedError(
                f"{name} {archive.model_version} is not registered, though {archive.path} "
                "was to be loaded"
            )
        if archive.has_our_handler:
            status = management.describe_worker(name, archive.model_version)
        statuses.append(status)
        differences += [
            one
            for one in find_differences(archive, status)
            if not (allow_cpu and one.setting == DEVICE)
        ]
    if differences:
        listed = "".join(f"\n  {difference}" for difference in differences)
        raise ExpectedError(f"TorchServe does not serve as the archives ask:{listed}")
    return statuses


def _explain(setting: str, config: dict[str, object], effective: int) -> str:
    """Says where a differing value most likely comes from."""
    wanted = config[setting]
    if setting == "maxBatchDelay" and wanted == 0:
        return "TorchServe reads 0 as unset; use 1 ms for the shortest delay"
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        return "TorchServe takes whole numbers from 1 and ignores others"
    if setting in ("minWorkers", "maxWorkers"):
        return _explain_workers(config)
    return (
        "the register API's parameters (batch_size, max_batch_delay, ...) beat the archive: "
        "who registered this model?"
    )


def _explain_cpu() -> str:
    """Says why a worker that was to have a GPU has none."""
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        why = "this host (or container) has no NVIDIA device"
    else:
        why = (
            "TorchServe or torch found no device: number_of_gpu, nvidia-smi, the driver"
        )
    return (
        f"{why}; --allow-cpu serves it on the CPU, `offpath archive --preset cpu` builds for it; "
        "`offpath check` says more"
    )


def _explain_workers(config: dict[str, object]) -> str:
    low, high = config.get("minWorkers"), config.get("maxWorkers")
    if not isinstance(low, int) or not isinstance(high, int) or high < low:
        return (
            "minWorkers and maxWorkers count only together, with 0 < minWorkers <= maxWorkers; "
            "otherwise default_workers_per_model of config.properties or the number of cores does"
        )
    return "somebody scaled the model over the management API"
