"""Builds a .mar from model, handler and settings; equal inputs give equal bytes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from offpath.archive import Say, say_nothing
from offpath.archive.engine_files.engine_folder import (
    build_engine_folder,
    plan_engine,
)
from offpath.archive.handler_file import HandlerFile
from offpath.archive.mar_file import LABELS, MANIFEST, NAME_PATTERN, write_mar
from offpath.archive.model_config import ModelConfig, format_model_config
from offpath.archive.model_probe import (
    check_label_count,
    check_repeatable,
    choose_activation,
    count_classes,
    find_output,
)
from offpath.archive.models.onnx_model import OnnxModel
from offpath.archive.photograph_sets import load_photographs
from offpath.archive.sources.checkpoint import take_names
from offpath.archive.sources.definition import check_shadowing
from offpath.archive.sources.model_source import ModelSource
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.custom_handler import MARK_FILE
from offpath.handler.model.engines.engine import FOLDER
from offpath.handler.model.outputs import OneOutput, keep_one_output

PACKAGE_DIR = Path(__file__).parent.parent
HANDLER_DIR = PACKAGE_DIR / "handler"
WEIGHTS_FILE = "weights.pt"
CONFIG_FILE = "model-config.yaml"
ENTRY_FILE = "classifier_entry.py"
# Files at the archive's root besides the model's definition.
OUR_FILES = (ENTRY_FILE, WEIGHTS_FILE, CONFIG_FILE, LABELS, "MAR-INF")
OUR_FOLDERS = {"offpath", FOLDER}


@dataclass(frozen=True)
class ArchiveSpec:
    """Everything that goes into an archive.

    Attributes:
        version: model version, as TorchServe registers it.
        names_version: whether the file is `NAME-VERSION.mar` instead of `NAME.mar`.
        labels: names by class index; None for none.
        labels_source: where the labels come from, for messages.
        extra_files: more files for the archive's root.
        handler: a subclass of our handler; None for ours unchanged.
        checks_answers: whether to run the model on photographs. That settles `activation: auto`,
            and makes and checks the engine's files.
        calibrate: a folder of photographs; None for those that PyPI packages ship.
        check: a last check of the model and the handler's settings, which returns a line for `say`;
            raises WrongOption to refuse them.
        trial: the same for the finished archive, where code of the user is in it.
    """

    name: str
    version: str
    source: ModelSource
    labels: list[str] | None
    labels_source: str
    config: ModelConfig
    extra_files: tuple[Path, ...] = ()
    handler: HandlerFile | None = None
    checks_answers: bool = False
    calibrate: Path | None = None
    names_version: bool = False
    check: Callable[[torch.nn.Module, HandlerConfig], str] | None = None
    trial: Callable[[Path], str] | None = None


@dataclass(frozen=True)
class BuiltArchive:
    """An archive on disk, with the model-config.yaml that it got."""

    path: Path
    config: ModelConfig


def build_archive(
    spec: ArchiveSpec, output: Path, force: bool = False, say: Say = say_nothing
) -> BuiltArchive:
    """Builds the archive in the folder `output`.

    Args:
        say: told what the photographs showed, one line each.

    Raises:
        ExpectedError: the name is bad, the file exists without `force`, the labels do not fit, a
            file would shadow a module, the engine cannot be built, or the folder cannot be written.
    """
    version = spec.version if spec.names_version else None
    target = find_target(spec.name, output, force, version)
    spec = _take_output(spec, say)
    classes = count_classes(spec.source.module, spec.config.handler.input_geometry)
    if spec.labels is not None:
        check_label_count(spec.labels, classes, spec.labels_source)
    else:
        say(f"no labels: answers name classes by number, 0 to {classes - 1} (--labels)")
    _check_extra_files(spec)
    with tempfile.TemporaryDirectory(prefix="offpath-archive-") as folder:
        engine_folder, partial = Path(folder, FOLDER), Path(folder, target.name)
        if spec.checks_answers:
            spec = replace(spec, config=_check_answers(spec, engine_folder, say))
        if spec.check is not None:
            say(spec.check(spec.source.module, spec.config.handler))
        _pack(spec, engine_folder, partial)
        has_users_code = spec.handler is not None or spec.source.users_file is not None
        if spec.trial is not None and has_users_code:
            say(spec.trial(partial))
        try:
            _put(partial, target)
        except OSError as error:
            raise WrongOption(f"{target} cannot be written: {error.strerror}") from error
    return BuiltArchive(target, spec.config)


def _take_output(spec: ArchiveSpec, say: Say) -> ArchiveSpec:
    """Settles the setting `output`; the source's module then returns the scores alone."""
    module, handler = spec.source.module, spec.config.handler
    if isinstance(module, OneOutput):
        return spec
    output = find_output(module, handler.input_geometry, handler.output, say)
    return replace(
        spec,
        source=replace(spec.source, module=keep_one_output(module, output)),
        config=spec.config.with_handler(output=output),
    )


def find_target(name: str, output: Path, force: bool, version: str | None = None) -> Path:
    """Returns the path of the archive to write, with the version in its name if one is given.

    Raises:
        WrongOption: TorchServe refuses the name or the version, or the path is taken.
    """
    for option, text in (("--name", name), ("--model-version", version)):
        if text is not None and not NAME_PATTERN.fullmatch(text):
            raise WrongOption(
                f"{option} {text!r}: accepted are letters, digits, '_', '-' and '.', with a letter "
                "or a digit first"
            )
    target = output / (f"{name}.mar" if version is None else f"{name}-{version}.mar")
    if target.is_dir():
        raise WrongOption(f"{target} is a folder; choose another --name or --output")
    if target.exists() and not force:
        raise WrongOption(f"{target} exists; pass --force to replace it")
    return target


def _check_answers(spec: ArchiveSpec, engine_folder: Path, say: Say) -> ModelConfig:
    """Runs the model on photographs and fills the engine folder.

    Returns:
        The settings with what was left open. Where the settings name an engine whose artefact has
        one precision, and no precision, they get that precision: the worker's `auto` might choose
        another. An `auto` engine stays `auto`, so that the worker can fall back where OpenVINO is
        not installed.
    """
    config, model = spec.config, spec.source.module
    photographs = load_photographs(
        spec.calibrate, config.handler, to_calibrate=config.handler.precision == "int8"
    )
    activation = choose_activation(model, config.handler, photographs.held_out, say)
    config = config.with_handler(activation=activation)
    check_repeatable(model, config.handler, photographs.held_out)
    plan = plan_engine(config.handler, config.device_type, model)
    if isinstance(model, OnnxModel):
        # The worker could otherwise choose eager, which would load the model a second time.
        config = config.with_handler(engine=plan.engine)
    if config.handler.engine != "auto":
        config = config.with_handler(precision=plan.precision)
    build_engine_folder(plan, model, config.handler, photographs, engine_folder, say)
    return config


def _put(archive: Path, target: Path) -> None:
    """Copies beside the target, then renames, so that a server never sees half an archive."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(f".mar.{os.getpid()}")
    try:
        shutil.copyfile(archive, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _check_extra_files(spec: ArchiveSpec) -> None:
    taken = {*OUR_FILES}
    for name in spec.source.files:
        top = name.partition("/")[0]
        if top in (*OUR_FILES, *OUR_FOLDERS):
            raise WrongOption(f"the model's files have a {top!r}, as ours do; rename it")
        check_shadowing(Path(top).with_suffix(Path(name).suffix))
        taken.add(top)
    if spec.source.model_file is not None:
        taken.add(spec.source.model_file.name)
    given = [("--handler", spec.handler.file)] if spec.handler else []
    for option, path in [*given, *(("--extra-file", path) for path in spec.extra_files)]:
        if not path.is_file():
            raise WrongOption(f"{option} {str(path)!r}: no such file")
        imported = spec.source.files.get(path.name)
        if imported is not None and path.samefile(imported):
            continue  # the definition imports it, so it is in already
        if path.name in taken:
            raise WrongOption(
                f"{option} {str(path)!r}: the archive already has a {path.name}; rename your file"
            )
        taken.add(path.name)
        check_shadowing(path)


def _pack(spec: ArchiveSpec, engine_folder: Path, target: Path) -> None:
    source = spec.source
    code = [PACKAGE_DIR / "__init__.py", *HANDLER_DIR.rglob("*.py")]
    files: dict[str, bytes | Path] = {
        **{f"offpath/{path.relative_to(PACKAGE_DIR).as_posix()}": path for path in code},
        **{f"{FOLDER}/{path.name}": path for path in engine_folder.glob("*")},
        ENTRY_FILE: HANDLER_DIR / ENTRY_FILE,
        CONFIG_FILE: format_model_config(spec.config.settings).encode(),
        **source.files,
        **{path.name: path for path in spec.extra_files},
    }
    named = {"handler": ENTRY_FILE, "config_file": CONFIG_FILE}
    if source.model_file is not None:
        named["model_file"] = source.model_file.name
        text = source.definition
        files[source.model_file.name] = source.model_file if text is None else text.encode()
    if source.script_file is not None or source.weights is not None:
        named["serialized_file"] = WEIGHTS_FILE
        files[WEIGHTS_FILE] = source.script_file or save_weights(source)
    if spec.labels is not None:
        files[LABELS] = format_index_to_name(spec.labels).encode()
    if spec.handler is not None:
        files[spec.handler.file.name] = spec.handler.file
        files[f"offpath/{MARK_FILE}"] = f"{spec.handler.mark}\n".encode()
    with tempfile.TemporaryDirectory(prefix="offpath-archiver-") as folder:
        stage = Path(folder, "stage")
        for name, content in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                (stage / name).write_bytes(content)
            else:
                shutil.copyfile(content, stage / name)
        manifest = _run_archiver(spec, stage, named)
    write_mar(target, manifest, files)


def _run_archiver(spec: ArchiveSpec, stage: Path, named: Mapping[str, str]) -> dict[str, Any]:
    """Packs the files in `stage` with torch-model-archiver, and returns its manifest.

    Its archive has today's dates, so `write_mar` writes another one.

    Raises:
        ExpectedError: the archiver fails.
    """
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--archive-format"]
    command += ["no-archive", "--model-name", spec.name, "--version", spec.version]
    # The archiver deletes and refills $TMPDIR/<model name>.
    (out := stage.parent / "out").mkdir()
    (scratch := stage.parent / "scratch").mkdir()
    command += ["--export-path", str(out), "--extra-files", str(stage)]
    for option, name in named.items():
        command += [f"--{option.replace('_', '-')}", str(stage / name)]
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    manifest = out / spec.name / MANIFEST
    if done.returncode != 0 or not manifest.is_file():
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    packed: dict[str, Any] = json.loads(manifest.read_text())
    return packed


def format_index_to_name(labels: list[str]) -> str:
    mapping = {str(index): label for index, label in enumerate(labels)}
    return json.dumps(mapping, indent=1, ensure_ascii=False) + "\n"


def save_weights(source: ModelSource) -> bytes:
    """Returns the file of the state dict; torch.save to a path would write its name into it."""
    if source.weights is None:
        raise RuntimeError("the model has no state dict")
    # In channels-last order, as the engine wants convolutions, workers can use the mapped pages
    # without a copy.
    weights = take_names(source.weights, source.weights)
    for name, tensor in source.weights.items():
        if tensor.dim() == 4:
            weights[name] = tensor.to(memory_format=torch.channels_last)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()
