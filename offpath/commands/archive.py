"""`offpath archive`: model + handler -> .mar."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.archive.no_network import environment_cleared
from offpath.commands.declared_options import option, takes_options
from offpath.commands.shared_options import FOLDER, MODEL_STORE, Archive, read_settings
from offpath.errors import WrongOption
from offpath.handler.config import INPUT_SETTINGS
from offpath.handler.serving_settings import name_keys
from offpath.serving.printable import printable

if TYPE_CHECKING:  # these modules import torch
    from offpath.archive.build import BuiltArchive
    from offpath.archive.handler_file import HandlerFile
    from offpath.archive.sources.model_source import ModelSource
    from offpath.archive.sources.stock_archive import OldArchive

DEFAULT_MODEL = "efficientnet-lite0"


@dataclass(frozen=True)
class ArchiveOptions:
    """Options of `offpath archive`."""

    model: str | None = option(
        "efficientnet-lite0, resnet50, near-free (a trivial model for measurements), "
        "torchvision:NAME, timm:NAME, a Python file (net.py, net.py:Net, net.py:make_model), a "
        "torch.export program, an ONNX file, a TorchScript file, or a folder with a Hugging Face "
        f"model.  [default: {DEFAULT_MODEL}]"
    )
    weights: str | None = option(
        "A state dict, a checkpoint, a .safetensors file, `pretrained`, or `random` (seeded).  "
        "[default: pretrained, for near-free random; required for a Python file and for "
        "torchvision: and timm: models]"
    )
    old: Path | None = option(
        "Convert an archive of TorchServe's image_classifier, or of a subclass with another "
        "image_processing or postprocess, or of an earlier offpath: take its model, weights, "
        "labels, name and settings instead of --model, --weights and --labels, and list what "
        "changes.",
        "--from",
        type=Archive(has_folders=True),
        metavar="OLD.mar",
    )
    labels: Path | None = option(
        "A file with one label per line, index_to_name.json, or the config.json of a Hugging Face "
        "model. Without it, a model that brings no labels answers with the numbers of its classes."
    )
    preset: str = option(
        "Batch, worker and time-out settings for a kind of machine: cpu, t4, or your own YAML "
        "file.",
        default="cpu",
    )
    batch_size: int | None = option("The most requests in a batch.  [default: the preset's]")
    max_batch_delay_ms: int | None = option(
        "How long the first request of a batch waits for others, at least 1 ms.  [default: the "
        "preset's]"
    )
    workers: int | None = option(
        "Number of worker processes; each uses cores/workers threads.  [default: the preset's]"
    )
    settings: tuple[str, ...] = option(
        "A setting of the `handler:` section, for example --set decode=exact or "
        "--set mean=[0.5,0.4,0.4]. docs/reference.md lists all of them. Can be repeated.",
        "--set",
        multiple=True,
        metavar="KEY=VALUE",
    )
    engine: str | None = option(
        "The engine that runs the model: auto, eager, openvino, or onnxruntime for an ONNX file.  "
        "[default: the preset's, or auto: OpenVINO if it is installed and the model gains]"
    )
    precision: str | None = option(
        "auto, fp32, bf16, fp16 or int8; not every engine has all of them.  [default: the "
        "preset's, or auto]"
    )
    calibrate: Path | None = option(
        "Photographs to check answers on, and to calibrate int8 with, which needs them.  "
        "[default: four small ones]",
        metavar="FOLDER",
    )
    handler: str | None = option(
        "Your own subclass of OffpathClassifier, for thresholds, your own JSON or more fields in "
        "the prediction log (docs/your-handler.md).",
        metavar="FILE.py[:CLASS]",
    )
    prediction_log: str | None = option(
        "Where the prediction log goes: s3://bucket/prefix, file:///folder or off.", metavar="URI"
    )
    extra_files: tuple[Path, ...] = option(
        "Add this file to the archive unchanged. Can be repeated.", "--extra-file", multiple=True
    )
    name: str | None = option(
        "Name of the model and of the file NAME.mar.  [default: classifier, or the name in --from]"
    )
    model_version: str | None = option(
        "Version of the model; the file is then NAME-VERSION.mar, so that two versions can be "
        "served from one folder.  [default: 1.0, or the version in --from]"
    )
    output: Path = option("Folder to write the archive to.", type=FOLDER, default=MODEL_STORE)
    force: bool = option("Replace an existing archive.")
    as_json: bool = option("Print the result as JSON.", "--json")


@click.command("archive")
@takes_options
def command(options: ArchiveOptions) -> None:
    """Build a TorchServe archive (.mar) from a model and offpath's handler.

    The archive's model-config.yaml holds all batch, worker and time-out settings, because that is
    the only place where TorchServe always honours them.

    \b
    Examples:
      offpath archive
      offpath archive --model resnet50 --weights pretrained --preset t4
      offpath archive --model net.py --weights net.pt --labels classes.txt --name defects
      offpath archive --model net.py:make_model --weights last.ckpt --set image_size=384
      offpath archive --model ./my-vit/ --name pets
      offpath archive --model grey.py --weights g.pt --set channels=1 --set mean=0.5 --set std=0.5
      offpath archive --from old.mar --output new-store
      offpath archive --handler my_handler.py --set 'own={reject_above: 0.8}'
      offpath archive --prediction-log s3://bucket/p --set 'prediction_log={sync: fsync}'
      offpath archive --engine openvino --precision int8 --calibrate my-photographs/
    """
    # A stranger's code could store what it finds in this process's environment in the archive.
    cleared = environment_cleared() if options.old else nullcontext()
    with tempfile.TemporaryDirectory(prefix="offpath-from-") as folder, cleared:
        built = _build(options, Path(folder))
    settings, size = built.config.settings, built.path.stat().st_size
    if options.as_json:
        result = {"archive": str(built.path), "bytes": size, "config": settings}
        click.echo(json.dumps(result))
        return
    serving = built.config.serving
    batch = f"batch {serving.batch_size}, delay {serving.max_batch_delay_ms} ms"
    workers = f"{serving.min_workers} workers"
    click.echo(f"{built.path} ({size / 1e6:.1f} MB; {batch}, {workers})")


def _build(options: ArchiveOptions, folder: Path) -> BuiltArchive:
    from offpath.archive.labels import read_labels
    from offpath.archive.model_config import (
        load_preset,
        make_model_config,
        merge_preprocessing,
    )
    from offpath.archive.sources.stock_archive import format_changes

    old = _unpack_old(options, folder)
    name = options.name or (old.name if old else "classifier")
    labels_file = options.labels or (old.labels if old else None)
    labels = read_labels(labels_file, _say) if labels_file else None
    settings = _handler_settings(options)
    given = name_keys(
        batch_size=options.batch_size,
        max_batch_delay_ms=options.max_batch_delay_ms,
        min_workers=options.workers,
        max_workers=options.workers,
    )
    server = {**(old.server if old else {}), **given}
    make_config = partial(make_model_config, load_preset(options.preset), server)
    # These import torch, which takes seconds: what is wrong above is said before.
    from offpath.archive.build import ArchiveSpec, build_archive, find_target
    from offpath.archive.handler_file import load_custom_handler
    from offpath.archive.sources.model_source import load_model_source
    from offpath.serving.check.trial import try_archive

    warnings.filterwarnings("ignore", message=".*torch.jit.*")
    handler = load_custom_handler(options.handler, _say) if options.handler else None
    find_target(name, options.output, options.force, options.model_version)
    if old is None:
        model = options.model or DEFAULT_MODEL
        source, check = load_model_source(model, options.weights, _say), None
    else:
        # What can be refused without running a stranger's code is refused before that.
        make_config(settings)
        source, handler, check = _load_old(old, handler, settings, options.calibrate)
    spec = ArchiveSpec(
        name=name,
        version=options.model_version or (old.version if old else "1.0"),
        source=source,
        labels=labels if labels is not None else source.labels,
        labels_source=str(labels_file or "the embedded label list"),
        config=make_config(merge_preprocessing(source.handler, settings)),
        handler=handler,
        extra_files=options.extra_files,
        checks_answers=True,
        calibrate=options.calibrate,
        names_version=options.model_version is not None,
        check=check,
        trial=try_archive,
    )
    built = build_archive(spec, options.output, options.force, _say)
    _say_unused_gpu(built.config.device_type)
    for change in format_changes(old, built.config.settings) if old else ():
        _say(change)
    return built


def _load_old(
    old: OldArchive,
    handler: HandlerFile | None,
    given: dict[str, Any],
    calibrate: Path | None,
) -> tuple[ModelSource, HandlerFile | None, Callable[..., str] | None]:
    """Returns the model with its preprocessing, its handler, and a last check of the archive."""
    from offpath.archive.model_probe import find_channels
    from offpath.archive.sources.model_source import load_model_source
    from offpath.archive.sources.old_handler import compare_scores, convert_handler

    own = "" if old.has_stock_handler or handler else f"{old.handler} and "
    _say(f"running {own}{old.model.name} of {old.path}, which is Python code")
    weights = None if old.weights is None else str(old.weights)
    source = load_model_source(str(old.model), weights, _say)
    source = replace(source, files={**old.files, **source.files})
    if handler is not None and old.ours is None:
        return source, handler, None
    settings, custom = convert_handler(old)
    custom = handler or custom
    taken = ", ".join(f"{key} {value!r:.80}" for key, value in settings.items())
    if taken:
        _say(f"taken from {old.path.name}: {taken}")
    if settings and find_channels(source.module) == 1:
        settings["channels"] = 1
    source = replace(source, handler=settings)
    answering = {*INPUT_SETTINGS, "activation", "output", "top_k"}
    if given.keys() & answering & (settings.keys() or answering):
        _say("not compared with the old handler, whose answers --set changes")
        return source, custom, None
    return source, custom, partial(compare_scores, old, custom, calibrate)


def _unpack_old(options: ArchiveOptions, folder: Path) -> OldArchive | None:
    from offpath.archive.sources.stock_archive import unpack

    if options.old is None:
        return None
    for name, given in (("model", options.model), ("weights", options.weights)):
        if given is not None:
            raise click.UsageError(
                f"--from takes the model from the old archive; leave --{name} out"
            )
    return unpack(options.old, folder, options.handler is not None)


def _say_unused_gpu(device_type: str) -> None:
    import torch

    if torch.cuda.is_available() and device_type != "gpu":
        _say("this machine has a GPU, but this archive asks for the CPU; pass --preset t4 for it")


def _say(line: str) -> None:
    """Prints on stderr, because stdout is for the result."""
    click.echo(printable(line), err=True)


def _handler_settings(options: ArchiveOptions) -> dict[str, Any]:
    """Collects `--set` and the options that stand for a `handler:` setting."""
    settings = read_settings(options.settings)
    for key, value in (("engine", options.engine), ("precision", options.precision)):
        if value:
            settings[key] = value
    if options.prediction_log:
        section = settings.get("prediction_log", {})
        if not isinstance(section, dict):
            raise WrongOption(
                f"--set prediction_log={section!r}: expected a mapping, as in "
                "--set 'prediction_log={uri: off}'"
            )
        settings["prediction_log"] = {**section, "uri": options.prediction_log}
    return settings
