"""Reads what model-config.yaml says to a server: workers, batches, time-outs and devices.

It lies beside HandlerConfig, because workers read some of these settings too, and a worker has
nothing of ours but the handler. Each setting has one default, on every server: TorchServe's for a
missing key, except for workers, of which TorchServe starts one per core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEVICE_TYPES = ("cpu", "gpu")


def _number(key: str, default: int, most: int) -> Any:
    """Declares a whole number from 1, with its name in the file."""
    return field(default=default, metadata={"key": key, "range": (1, most)})


@dataclass(frozen=True)
class ServingSettings:
    """The settings of one archive. Like TorchServe, it ignores values that are no whole numbers.

    Attributes:
        max_batch_delay_ms: TorchServe reads 0 as unset, which means the default.
        device_type: None lets the server choose.
        device_ids: the GPUs that the workers take in turn; empty for all.
        asked: the values as they are in the file, by the names of these attributes; for checks.
    """

    min_workers: int = _number("minWorkers", 1, 1024)
    max_workers: int = _number("maxWorkers", 1, 1024)
    batch_size: int = _number("batchSize", 1, 4096)
    max_batch_delay_ms: int = _number("maxBatchDelay", 100, 600_000)
    response_timeout_s: int = _number("responseTimeout", 120, 86_400)
    startup_timeout_s: int = _number("startupTimeout", 120, 86_400)
    device_type: str | None = field(default=None, metadata={"key": "deviceType"})
    device_ids: tuple[int, ...] = field(default=(), metadata={"key": "deviceIds"})
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> ServingSettings:
        """Reads the content of a model-config.yaml, which a stranger may have written."""
        asked = {name: config[key] for name, key in KEYS.items() if key in config}
        values = {name: value for name, value in asked.items() if is_accepted(name, value)}
        ids = tuple(values.pop("device_ids", ()))
        return cls(**values, device_ids=ids, asked=asked)

    @property
    def workers(self) -> int:
        """The workers of a server that starts all at once."""
        return max(self.min_workers, self.max_workers)

    @property
    def names_workers(self) -> bool:
        """True if both numbers of workers are there and fit, without which both are ignored."""
        is_given = {"min_workers", "max_workers"} <= self.asked.keys() - self.ignored.keys()
        return is_given and self.max_workers >= self.min_workers

    def list_numbers(self) -> dict[str, int]:
        """Returns the numbers in force, by their keys in model-config.yaml."""
        return name_keys(**{name: getattr(self, name) for name in RANGES})

    @property
    def ignored(self) -> dict[str, Any]:
        """The values that are ignored, by the names of the attributes."""
        return {name: value for name, value in self.asked.items() if not is_accepted(name, value)}


_FIELDS = [one for one in dataclasses.fields(ServingSettings) if one.metadata]
# Attribute -> key of model-config.yaml.
KEYS: dict[str, str] = {one.name: one.metadata["key"] for one in _FIELDS}
# Attributes that are numbers -> the range in which `offpath archive` accepts them.
RANGES: dict[str, tuple[int, int]] = {
    one.name: one.metadata["range"] for one in _FIELDS if "range" in one.metadata
}


def is_accepted(name: str, value: object) -> bool:
    if name == "device_type":
        return value in DEVICE_TYPES
    if name == "device_ids":
        return isinstance(value, list) and all(type(o) is int and o >= 0 for o in value)
    return type(value) is int and value > 0


def name_keys(**values: Any) -> dict[str, Any]:
    """Returns settings under their keys in model-config.yaml, without those that are None."""
    return {KEYS[name]: value for name, value in values.items() if value is not None}
