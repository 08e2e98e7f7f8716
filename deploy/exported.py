"""What every export does first: checks the archive, unpacks it, says what it needs to run."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError, WrongOption
from offpath.serving.mar_file import MarFile, read_mar

ARCHIVED_HANDLER = Path(__file__).with_name("archived_handler.py")
ARCHIVED_DECODER = Path(__file__).with_name("archived_decoder.py")
# In every export: what it was made from. `--force` replaces such folders alone.
MARK = "offpath-export.json"
# What a worker imports; torchserve for the classes that a handler derives from.
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
# Of an archive's setting `engine`, each named as its package; docs/engines.md.
ENGINES = ("openvino", "onnxruntime", "tensorrt")


def read_exportable(path: Path) -> MarFile:
    """The archive to export.

    Raises:
        WrongOption: no archive, or not one of `offpath archive`.
    """
    archive = read_mar(path)
    if not archive.has_our_handler or archive.model_config is None:
        raise WrongOption(
            f"{path} has another handler than ours, which only TorchServe can run: build the"
            " archive with `offpath archive`"
        )
    return archive


def make_folder(output: Path, force: bool) -> None:
    """An empty folder for an export.

    Raises:
        WrongOption: there is something already that is no export, or one and no `--force`.
    """
    if output.exists() and not output.is_dir():
        raise WrongOption(f"--output {str(output)!r} is a file: expected a folder")
    if output.is_dir() and any(output.iterdir()):
        # Never a folder with somebody's files in it.
        if not (output / MARK).is_file():
            raise WrongOption(
                f"--output {str(output)!r} holds something that is no export: name an empty folder"
            )
        if not force:
            raise WrongOption(
                f"--output {str(output)!r} holds an export: pass --force to replace it"
            )
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)


def write_mark(output: Path, archive: MarFile) -> None:
    """Says what the folder was made from; written last."""
    digest = hashlib.sha256(archive.path.read_bytes()).hexdigest()
    made_from = {"archive": archive.path.name, "sha256": digest}
    (output / MARK).write_text(json.dumps(made_from) + "\n", encoding="utf-8")


def unpack(archive: MarFile, folder: Path) -> None:
    """Writes the archive's content, and beside it what calls its handler."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive.path) as content:
        content.extractall(folder / "archive")
    shutil.copy(ARCHIVED_HANDLER, folder)


def list_requirements(archive: MarFile) -> list[str]:
    """The packages that its worker imports, as pip takes them."""
    engine = handler_settings(archive).get("engine", "auto")
    names = list(REQUIREMENTS)
    if engine in ENGINES:
        names.append(engine)
    elif engine == "auto":
        # Used where it is there, and the archive carries its graph.
        names.append("openvino")
    return names


def wants_gpu(archive: MarFile) -> bool:
    """Whether the archive asks for a GPU."""
    return (archive.model_config or {}).get("deviceType") == "gpu"


def count_workers(archive: MarFile) -> int:
    """How many workers the archive asks for."""
    config = archive.model_config or {}
    return int(config.get("maxWorkers") or config.get("minWorkers") or 1)


def read_handler_config(archive: MarFile) -> HandlerConfig:
    """The archive's `handler:` section, checked and with the defaults of what it leaves out.

    Raises:
        WrongOption: a worker would refuse it.
    """
    try:
        return HandlerConfig.from_mapping(handler_settings(archive), environ={})
    except ConfigError as error:
        raise WrongOption(f"{archive.path}: {error}") from error


def handler_settings(archive: MarFile) -> dict[str, Any]:
    """The archive's `handler:` section."""
    section: dict[str, Any] = (archive.model_config or {}).get("handler") or {}
    return section
