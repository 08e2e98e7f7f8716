"""List prices from a YAML file: what an instance costs an hour, what S3 takes for puts and storage.

Ours (`prices.yaml`) is dated and names its sources; a user's own file has the same keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from offpath.handler.errors import WrongOption

PRICES_FILE = Path(__file__).with_name("prices.yaml")


@dataclass(frozen=True)
class Prices:
    """US dollars.

    Attributes:
        as_of, region, sources: where the figures come from.
        instances: type -> dollars an hour.
        gpus: type -> its GPU; None where the file does not say which have one.
        vcpus: type -> how many; empty where the file does not say.
        put_per_1000: dollars for 1,000 put requests.
        storage_per_gb_month: dollars for a GB (2^30 bytes, as S3 bills) kept a month.
    """

    as_of: str
    region: str
    sources: dict[str, str]
    instances: dict[str, float]
    put_per_1000: float
    storage_per_gb_month: float
    gpus: dict[str, str] | None = None
    vcpus: dict[str, float] = field(default_factory=dict)

    def hourly(self, instance: str) -> float:
        """Price of one instance, dollars an hour.

        Raises:
            WrongOption: the file does not have it.
        """
        if instance not in self.instances:
            raise WrongOption(
                f"no price for instance {instance!r}: expected one of"
                f" {', '.join(self.instances)}, or give --hourly-price"
            )
        return self.instances[instance]

    def count_vcpus(self, instance: str) -> float:
        """vCPUs of one instance.

        Raises:
            ExpectedError: the file does not say.
        """
        if not self.vcpus.get(instance):
            raise WrongOption(
                f"no number of vCPUs for instance {instance!r}: expected it under `vcpus` in the"
                f" price file, which has {', '.join(self.vcpus) or 'none'}"
            )
        return self.vcpus[instance]

    def find_mixture(self, on_gpu: bool, instance: str | None) -> str | None:
        """Why rates measured with or without a GPU are not those of this instance; None if fine."""
        if self.gpus is None or instance is None:
            return None
        gpu = self.gpus.get(instance)
        if on_gpu == (gpu is not None):
            return None
        measured = "with a GPU" if on_gpu else "on a CPU"
        has = "has none" if gpu is None else f"has a {gpu}"
        return f"the rates were measured {measured}, {instance} {has}: what it answers is unknown"


def load_prices(path: Path = PRICES_FILE) -> Prices:
    """Reads a price file.

    Raises:
        WrongOption: no such file, a missing key, a price that is not a number from 0.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        gpus = content.get("gpus")
        return Prices(
            as_of=str(content["as_of"]),
            region=str(content["region"]),
            sources={str(k): str(v) for k, v in content["sources"].items()},
            instances=read_amounts(content["instances"]),
            put_per_1000=read_amounts(content["s3"])["put_per_1000"],
            storage_per_gb_month=read_amounts(content["s3"])["storage_per_gb_month"],
            gpus=None if gpus is None else {str(k): str(v) for k, v in gpus.items()},
            vcpus=read_amounts(content.get("vcpus") or {}),
        )
    except KeyError as error:
        raise WrongOption(
            f"prices {str(path)!r} lack {error}: expected the keys of {PRICES_FILE}"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise WrongOption(
            f"cannot read {str(path)!r} as prices ({error}): expected the keys of {PRICES_FILE}"
        ) from error


def read_amounts(section: Mapping[str, Any]) -> dict[str, float]:
    """A mapping of names to dollars; raises ValueError on anything but numbers from 0."""
    for name, value in section.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value!r}, not a price from 0")
    return {str(name): float(value) for name, value in section.items()}
