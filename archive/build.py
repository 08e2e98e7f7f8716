"""Model + handler + settings -> a .mar, through torch-model-archiver, byte for byte repeatable."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offpath.archive.custom_handler import OwnHandler
from offpath.archive.engines.artefacts import EngineBuild, Say, build_engine_folder
from offpath.archive.labels import check_label_count, format_index_to_name
from offpath.archive.model_config import format_model_config
from offpath.archive.model_input import count_classes
from offpath.archive.sources.definition import check_shadowing
from offpath.archive.sources.model_source import ModelSource
from offpath.handler.config import HandlerConfig
from offpath.handler.custom_handler import MARK_FILE
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.model.engines.artefacts import FOLDER

PACKAGE_DIR = Path(__file__).parent.parent
HANDLER_DIR = PACKAGE_DIR / "handler"
# TorchServe's own rule (model_archiver/model_packaging_utils.py), checked before the long part.
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
# zip has no earlier date; the archiver's own would make every build differ.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
CREATED_ON = "01/01/1980 00:00:00"
WEIGHTS_FILE = "weights.pt"
ENTRY_FILE = "classifier_entry.py"
# What lies at the archive's root beside the model's definition.
OWN_FILES = (
    ENTRY_FILE,
    WEIGHTS_FILE,
    "model-config.yaml",
    "index_to_name.json",
    "MAR-INF",
)


@dataclass(frozen=True)
class ArchiveSpec:
    """What goes into an archive.

    Attributes:
        name: model name and file name.
        version: model version, as TorchServe registers it.
        source: the loaded model.
        labels: names by class index; None for none.
        labels_source: where the labels come from, for messages.
        config: the content of model-config.yaml.
        extra_files: further files for the archive's root.
        handler: a subclass of our handler, None for ours as it is.
        engine: which back end's files go in, with photographs to check it on; None for neither.
    """

    name: str
    version: str
    source: ModelSource
    labels: list[str] | None
    labels_source: str
    config: Mapping[str, Any]
    extra_files: tuple[Path, ...] = ()
    handler: OwnHandler | None = None
    engine: EngineBuild | None = None


def build_archive(
    spec: ArchiveSpec,
    output: Path,
    force: bool = False,
    say: Say = lambda line: None,
) -> Path:
    """Builds `output/name.mar`; `say` is told how the engine's files came out.

    Raises:
        ExpectedError: bad name, existing file without `force`, labels that do not fit, files that
            would shadow a module, an engine that cannot be built, a folder that cannot be written,
            or the archiver's complaint.
    """
    if not NAME_PATTERN.fullmatch(spec.name):
        raise WrongOption(
            f"--name {spec.name!r}; accepted: letters, digits, '_', '-' and '.'"
        )
    target = output / f"{spec.name}.mar"
    if target.is_dir():
        raise WrongOption(f"{target} is a folder; choose another --name or --output")
    if target.exists() and not force:
        raise WrongOption(f"{target} exists; pass --force to replace it")
    handler = HandlerConfig.from_mapping(spec.config["handler"], environ={})
    classes = count_classes(spec.source.module, handler.square)
    if spec.labels is not None:
        check_label_count(spec.labels, classes, spec.labels_source)
    _check_extra_files(spec)
    with tempfile.TemporaryDirectory(prefix="offpath-archive-") as folder:
        built = _run_archiver(spec, Path(folder), say)
        partial = Path(folder) / "normalised.mar"
        normalise_archive(built, partial)
        try:
            _put(partial, target)
        except OSError as error:
            raise WrongOption(f"{target} cannot be written: {error}") from error
    return target


def _put(archive: Path, target: Path) -> None:
    """Copies beside the target and renames: a server never sees half an archive."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(f".mar.{os.getpid()}")
    try:
        shutil.copyfile(archive, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def normalise_archive(source: Path, target: Path) -> None:
    """Rewrites a .mar so that the same inputs give the same bytes: order, dates, modes, createdOn.

    Stored, not deflated: weights hardly compress and every worker start reads them.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in sorted(old.namelist()):
            content = old.read(name)
            if name == "MAR-INF/MANIFEST.json":
                manifest = json.loads(content)
                manifest["createdOn"] = CREATED_ON
                content = json.dumps(manifest, indent=2, sort_keys=True).encode()
            info = zipfile.ZipInfo(name, ZIP_DATE)
            info.external_attr = 0o644 << 16
            new.writestr(info, content)


def _check_extra_files(spec: ArchiveSpec) -> None:
    taken = {*OWN_FILES}
    taken |= {name.partition("/")[0] for name in spec.source.files}
    if spec.source.model_file is not None:
        taken.add(spec.source.model_file.name)
    if spec.handler is not None:
        if spec.handler.file.name in taken:
            raise WrongOption(
                f"--handler {str(spec.handler.file)!r}: the archive has a "
                f"{spec.handler.file.name}; rename yours"
            )
        taken.add(spec.handler.file.name)
    for path in spec.extra_files:
        if not path.is_file():
            raise WrongOption(f"--extra-file {str(path)!r}: no such file")
        imported = spec.source.files.get(path.name)
        if imported is not None and path.samefile(imported):
            continue  # the definition brings it along already
        if path.name in taken:
            raise WrongOption(
                f"--extra-file {str(path)!r}: the archive has a {path.name}; rename yours"
            )
        taken.add(path.name)
        check_shadowing(path)


def _run_archiver(spec: ArchiveSpec, folder: Path, say: Say) -> Path:
    """Lays the files out and calls torch-model-archiver."""
    stage, out, scratch = folder / "stage", folder / "out", folder / "tmp"
    for path in (stage, out, scratch):
        path.mkdir()
    _stage_files(spec, stage)
    if spec.engine is not None:
        config = HandlerConfig.from_mapping(spec.config["handler"], environ={})
        model = spec.source.module
        build_engine_folder(spec.engine, model, config, stage / FOLDER, say)
    config_file = folder / "model-config.yaml"
    config_file.write_text(format_model_config(spec.config), encoding="utf-8")
    serialized = folder / WEIGHTS_FILE
    command = [
        sys.executable, "-m", "model_archiver.model_packaging",
        "--model-name", spec.name, "--version", spec.version,
        "--handler", str(HANDLER_DIR / ENTRY_FILE),
        # The parent of offpath/: passing offpath/ itself would flatten it.
        "--extra-files", str(stage),
        "--config-file", str(config_file),
        "--export-path", str(out), "--archive-format", "zip-store", "--force",
    ]  # fmt: skip
    if spec.source.script_file is not None:
        shutil.copyfile(spec.source.script_file, serialized)
    elif spec.source.weights is not None:
        save_weights(spec.source, serialized)
    if serialized.exists():
        command += ["--serialized-file", str(serialized)]
    if spec.source.model_file is not None:
        command += ["--model-file", str(_find_definition(spec.source, folder))]
    # The archiver deletes and refills $TMPDIR/<model name>: it gets a folder of its own.
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    built = out / f"{spec.name}.mar"
    if done.returncode != 0 or not built.is_file():
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    return built


def _find_definition(source: ModelSource, folder: Path) -> Path | None:
    """The user's file, or the one that is written."""
    if source.definition is None or source.model_file is None:
        return source.model_file
    written = folder / source.model_file.name
    written.write_text(source.definition, encoding="utf-8")
    return written


def _stage_files(spec: ArchiveSpec, stage: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(HANDLER_DIR, stage / "offpath" / "handler", ignore=ignore)
    shutil.copyfile(PACKAGE_DIR / "__init__.py", stage / "offpath" / "__init__.py")
    if spec.handler is not None:
        shutil.copyfile(spec.handler.file, stage / spec.handler.file.name)
        (stage / "offpath" / MARK_FILE).write_text(f"{spec.handler.mark}\n")
    if spec.labels is not None:
        text = format_index_to_name(spec.labels)
        (stage / "index_to_name.json").write_text(text, encoding="utf-8")
    for name, path in spec.source.files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, stage / name)
    for path in spec.extra_files:
        shutil.copyfile(path, stage / path.name)


def save_weights(source: ModelSource, path: Path) -> None:
    """Saves the state dict; through memory, because torch.save writes the file's name into it."""
    if source.weights is None:
        raise RuntimeError("a Python model without weights")
    # Channels last, as the engine wants convolutions: workers use the mapped pages as they are.
    weights = {
        name: (
            tensor.to(memory_format=torch.channels_last)
            if tensor.dim() == 4
            else tensor
        )
        for name, tensor in source.weights.items()
    }
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path.write_bytes(buffer.getvalue())
