"""Holds the steps that every export shares: read the archive, make the folder, unpack."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath import serving
from offpath.archive.mar_file import check_runs_alone, read_mar, unpack_mar
from offpath.archive.model_config import is_device_ids
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, WrongOption
from offpath.serving.process.gpus import list_gpus

# Modules that the exports share with Granian's workers.
SHELL = Path(serving.__file__).parent / "shell"
# A file in every export that names its archive; --force replaces only folders that hold it.
MARK = "offpath-export.json"
# Packages that the archive's handler imports. Its classes derive from classes of torchserve.
REQUIREMENTS = (
    "torch",
    "torchvision",
    "torchserve",
    "numpy",
    "Pillow",
    "simplejpeg",
    "PyYAML",
    "orjson",
    "xxhash",
    "zstandard",
    "aiobotocore",
    "captum",
)
# Values of the setting `engine` that are also the name of a package; docs/engines.md.
ENGINES = ("openvino", "onnxruntime", "tensorrt")


@dataclass(frozen=True)
class Exportable:
    """An archive of `offpath archive`, with its settings.

    Attributes:
        server: TorchServe's settings of its model-config.yaml.
        handler: the checked `handler:` section.
    """

    path: Path
    name: str
    server: Mapping[str, Any]
    handler: HandlerConfig

    @property
    def batch_size(self) -> int:
        return int(self.server.get("batchSize", 1))

    @property
    def max_batch_delay_ms(self) -> int:
        return int(self.server.get("maxBatchDelay", 1))

    @property
    def workers(self) -> int:
        return int(self.server.get("maxWorkers") or self.server.get("minWorkers") or 1)

    @property
    def wants_gpu(self) -> bool:
        return self.server.get("deviceType") == "gpu"

    def list_gpus(self) -> list[int]:
        """Lists the GPUs of this machine that workers take in turn; none for the CPU."""
        ids: Any = self.server.get("deviceIds")
        chosen = ids if is_device_ids(ids) else []
        return list_gpus(self.server.get("deviceType"), chosen)

    def list_requirements(self) -> list[str]:
        engine = self.handler.engine
        if engine == "auto":
            # Used if it is installed and the archive holds its graph.
            engine = "openvino"
        return [*REQUIREMENTS, *([engine] if engine in ENGINES else [])]


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
    try:
        handler = HandlerConfig.from_mapping(archive.model_config.get("handler"), environ={})
    except ConfigError as error:
        raise WrongOption(f"{path}: {error}") from error
    return Exportable(path, archive.model_name, archive.model_config, handler)


def make_folder(output: Path, force: bool) -> None:
    """Makes an empty folder for an export.

    Raises:
        WrongOption: the folder holds an export and `force` is not set, or holds anything else.
    """
    if output.exists() and not output.is_dir():
        raise WrongOption(f"--output {str(output)!r} is a file; expected a folder")
    if output.is_dir() and any(output.iterdir()):
        # Never delete a folder with the user's own files.
        if not (output / MARK).is_file():
            raise WrongOption(
                f"--output {str(output)!r} holds files that are no export; choose an empty folder"
            )
        if not force:
            raise WrongOption(
                f"--output {str(output)!r} holds an export; pass --force to replace it"
            )
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Writes the archive's content to `folder/archive`, with the module that calls its handler."""
    folder.mkdir(parents=True, exist_ok=True)
    unpack_mar(read_mar(archive), folder / "archive")
    shutil.copy(SHELL / "archived_handler.py", folder)


def write_export(
    archive: Exportable,
    output: Path,
    folder: Path,
    programs: Sequence[Path],
    texts: Mapping[str, str],
    force: bool,
) -> None:
    """Writes an export: the archive and programs to `folder`, texts by their names in `output`.

    Raises:
        WrongOption: see `make_folder`.
    """
    make_folder(output, force)
    unpack(archive.path, folder)
    for program in programs:
        shutil.copy(program, folder)
    digest = hashlib.sha256(archive.path.read_bytes()).hexdigest()
    # The last, because it marks a whole export.
    mark = {MARK: json.dumps({"archive": archive.path.name, "sha256": digest}) + "\n"}
    for name, text in {**texts, **mark}.items():
        (output / name).write_text(text, encoding="utf-8")
