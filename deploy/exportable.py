"""Holds the steps that every export shares: read the archive, make the folder, unpack."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import offpath
from offpath.archive.mar_file import OUR_MARK, check_runs_alone, read_mar, unpack_mar
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.check.spelling import find_unread_settings
from offpath.serving.process.gpus import list_gpus
from offpath.serving.service.model_service import ServiceSettings, largest_body_bytes

# The modules of ours that an export needs beside its archive, which has the handler.
PACKAGE = Path(offpath.__file__).parent
SERVICE = (
    "__init__.py",
    "handler/__init__.py",
    "handler/contract.py",
    "handler/deadline.py",
    "handler/error_kinds.py",
    "handler/errors.py",
    "handler/request/__init__.py",
    "handler/request/encodings.py",
    "handler/serving_settings.py",
    "handler/wire_names.py",
    "serving/__init__.py",
    "serving/service/*.py",
)
# Packages that the archive's classifier imports.
REQUIREMENTS = (
    "torch",
    "torchvision",
    "numpy",
    "Pillow",
    "simplejpeg",
    "PyYAML",
    "orjson",
    "pybase64",
    "xxhash",
    "aiobotocore",
    "captum",
)
# Ray counts a GPU in parts of this size.
GPU_PARTS = 10_000
# Ray's and Triton's own limits are lower.
MAX_REQUESTS = 1_000_000
# Values of the setting `engine` that are also the name of a package; docs/engines.md.
ENGINES = ("openvino", "onnxruntime")


@dataclass(frozen=True)
class Exportable:
    """An archive of `offpath archive`, with its settings.

    Attributes:
        handler: the checked `handler:` section.
        is_custom: it has a handler of its user's, which may need classes of TorchServe.
    """

    path: Path
    name: str
    serving: ServingSettings
    handler: HandlerConfig
    is_custom: bool

    @property
    def wants_gpu(self) -> bool:
        return self.serving.device_type == "gpu"

    def share_gpu(self, workers: int) -> float:
        """Returns the part of a GPU that each of these workers asks Ray for; 0 on the CPU.

        It is rounded down to Ray's ten-thousandths, or the last worker would find too little left.
        """
        return GPU_PARTS // workers / GPU_PARTS if self.wants_gpu else 0

    def list_gpus(self) -> list[int]:
        """Lists the GPUs of this machine that workers take in turn; none for the CPU."""
        return list_gpus(self.serving.device_type, self.serving.device_ids)

    def describe_service(self, threads: int | None = None) -> dict[str, Any]:
        """Returns the fields of `ServiceSettings`; the surrounding server limits the requests."""
        settings = ServiceSettings(
            self.name,
            None,
            self.serving.batch_size,
            self.serving.max_batch_delay_ms,
            self.serving.response_timeout_s,
            largest_body_bytes(self.handler.max_payload_bytes),
            max_requests=MAX_REQUESTS,
            threads=threads,
        )
        return asdict(settings)

    def list_requirements(self) -> list[str]:
        engine = self.handler.engine
        if engine == "auto":
            # Used if it is installed and the archive holds its graph.
            engine = "openvino"
        own = ["torchserve"] if self.is_custom else []
        return [*REQUIREMENTS, *own, *([engine] if engine in ENGINES else [])]


def read_exportable(path: Path) -> Exportable:
    """Reads the archive to export.

    Raises:
        WrongOption: the file is no archive, `offpath archive` did not build it, or a worker would
            refuse its settings.
    """
    archive = read_mar(path)
    check_runs_alone(archive)
    if archive.model_config is None:
        raise WrongOption(
            f"{path} has no model-config.yaml; build the archive with `offpath archive`"
        )
    for one in find_unread_settings(f"model-config.yaml of {path}", archive):
        raise WrongOption(f"{one.area}: {one.found}; {one.cure}")
    try:
        handler = HandlerConfig.from_mapping(archive.model_config.get("handler"), environ={})
    except ConfigError as error:
        raise WrongOption(f"{path}: {error}") from error
    is_custom = OUR_MARK in archive.names
    return Exportable(path, archive.model_name, archive.serving, handler, is_custom)


def write_export(
    archive: Exportable,
    output: Path,
    program: Path,
    place: str,
    packages: str,
    texts: Mapping[str, str],
    threads: int | None = None,
) -> None:
    """Writes an export: archive, program and settings to the folder `place`, which is in `output`.

    Args:
        packages: folder in `place` for our package.
        texts: further files by their names in `output`.

    Raises:
        WrongOption: the folder is not empty.
    """
    if output.is_dir() and any(output.iterdir()):
        raise WrongOption(f"--output {str(output)!r} holds files; choose an empty folder")
    folder = output / place
    folder.mkdir(parents=True, exist_ok=True)
    unpack_mar(read_mar(archive.path), folder / "archive")
    for pattern in SERVICE:
        for path in PACKAGE.glob(pattern):
            copy = folder / packages / "offpath" / path.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    shutil.copy(program, folder)
    settings = json.dumps(archive.describe_service(threads), indent=2) + "\n"
    for name, text in {f"{place}/settings.json": settings, **texts}.items():
        (output / name).write_text(text, encoding="utf-8")
