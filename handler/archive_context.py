"""The facts with which a classifier is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from offpath.handler.contract import Publish, drop
from offpath.handler.serving_settings import ServingSettings


@dataclass(frozen=True)
class ArchiveContext:
    """An unpacked archive on one server; the names are those of TorchServe's Context.

    Attributes:
        model_name: the name under which the model is served.
        manifest: the archive's MAR-INF/MANIFEST.json.
        model_yaml_config: its model-config.yaml.
        system_properties: `model_dir`, `gpu_id` (None for the CPU) and `batch_size`.
        publish: publishes the classifier's metrics.
    """

    model_name: str
    manifest: Mapping[str, Any]
    model_yaml_config: Mapping[str, Any]
    system_properties: Mapping[str, Any]
    publish: Publish = drop

    @classmethod
    def read(
        cls,
        folder: Path,
        batch_size: int | None = None,
        gpu: int | None = None,
        threads: int | None = None,
        publish: Publish = drop,
        name: str | None = None,
    ) -> ArchiveContext:
        """Reads an archive; a server's value comes before the archive's own.

        Args:
            batch_size: the largest batch that will come.
            threads: threads of this process.

        Raises:
            OSError: the folder holds no archive.
        """
        manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
        model = manifest["model"]
        config = yaml.safe_load((folder / model["configFile"]).read_text()) or {}
        if threads is not None:
            config["handler"] = {**(config.get("handler") or {}), "threads": threads}
        size = batch_size or ServingSettings.from_mapping(config).batch_size
        properties = {"model_dir": str(folder), "gpu_id": gpu, "batch_size": size}
        return cls(name or model["modelName"], manifest, config, properties, publish)
