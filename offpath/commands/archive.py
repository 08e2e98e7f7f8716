"""`offpath archive`: model + handler -> .mar."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from offpath.commands.settings_option import read_settings
from offpath.handler.errors import WrongOption

if TYPE_CHECKING:  # torch comes with it
    from offpath.archive.sources.stock_archive import OldArchive


@click.command("archive")
@click.option(
    "--model",
    default="efficientnet-lite0",
    show_default=True,
    help="efficientnet-lite0, resnet50, near-free, torchvision:NAME, timm:NAME, a Python file "
    "(net.py, net.py:Net, net.py:make_model), a torch.export program or a TorchScript file.",
)
@click.option(
    "--weights",
    help="State dict, checkpoint or .safetensors, `pretrained` or `random` (seeded)."
    " Default: the model's.",
)
@click.option(
    "--weights-key",
    metavar="KEY",
    help="The part of a checkpoint to take, e.g. ema where it holds averages beside the trained "
    "weights; dots between dicts. Default: the trained ones, or what there is; it is said.",
)
@click.option(
    "--from",
    "old",
    type=Path,
    metavar="OLD.mar",
    help="A stock image_classifier archive: its model, weights, labels, name and batch settings in "
    "the place of --model, --weights and --labels. Says what changes.",
)
@click.option("--labels", type=Path, help="One label a line, or index_to_name.json.")
@click.option(
    "--preset",
    default="cpu",
    show_default=True,
    help="cpu, t4, or a preset file (YAML).",
)
@click.option("--batch-size", type=int, help="Requests per batch at most.")
@click.option(
    "--max-batch-delay-ms", type=int, help="How long a lone request waits (from 1)."
)
@click.option(
    "--workers", type=int, help="Worker processes; threads per worker = cores/workers."
)
@click.option(
    "--response-timeout-s", type=int, help="After this a worker counts as hung."
)
@click.option(
    "--startup-timeout-s", type=int, help="How long a worker may take to load."
)
@click.option(
    "--mean",
    metavar="N,N,N",
    help="Subtracted from pixels scaled to 0..1: a number a channel, or one for all. "
    "Default: ImageNet's.",
)
@click.option("--std", metavar="N,N,N", help="Divided by after that; as --mean.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A `handler:` setting, e.g. --set decode=exact (docs/reference.md lists them); "
    "repeatable.",
)
@click.option(
    "--engine",
    help="What runs the model: auto, eager, compiled, onnxruntime, openvino or "
    "tensorrt. Default: the preset's, else auto (OpenVINO where it is installed and gains).",
)
@click.option(
    "--precision",
    help="auto, fp32, bf16, fp16 or int8 (not for every engine). Default: the preset's, else auto.",
)
@click.option(
    "--calibrate",
    type=Path,
    metavar="FOLDER",
    help="Photographs to calibrate int8 with and to check answers on. Default: those that ship "
    "in scikit-image and scikit-learn, else four small ones, not for int8.",
)
@click.option(
    "--handler",
    "own_handler",
    metavar="FILE.py[:CLASS]",
    help="A subclass of OffpathClassifier of your own: thresholds, business JSON, fields of the "
    "log (docs/your-handler.md).",
)
@click.option(
    "--prediction-log", metavar="URI", help="s3://bucket/prefix, file:///folder or off."
)
@click.option(
    "--extra-file", "extra_files", type=Path, multiple=True, help="Goes along as it is."
)
@click.option("--name", help="Model and file name [default: classifier, or --from's].")
@click.option(
    "--model-version", help="As TorchServe shows it [default: 1.0, or --from's]."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".offpath/model-store"),
    show_default=True,
    help="Model store to write to.",
)
@click.option("--force", is_flag=True, help="Replace an existing archive.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**options: Any) -> None:
    """Build a TorchServe archive (.mar) from a model and offpath's handler.

    The archive's model-config.yaml carries all batch, worker and time-out settings: it is the only
    place where TorchServe always honours them.

    \b
    Examples:
      offpath archive
      offpath archive --model resnet50 --weights pretrained --preset t4
      offpath archive --model net.py --weights net.pt --labels classes.txt --name defects
      offpath archive --model net.py:make_model --weights last.ckpt --set image_size=384
      offpath archive --model net.py --weights last.ckpt --weights-key ema
      offpath archive --model grey.py --weights grey.pt --set channels=1 --mean 0.5 --std 0.5
      offpath archive --from old.mar --output new-store
      offpath archive --handler my_handler.py --set 'own={reject_above: 0.8}'
      offpath archive --engine openvino --precision int8 --calibrate my-photographs/
    """
    with tempfile.TemporaryDirectory(prefix="offpath-from-") as folder:
        path, config = _build(options, Path(folder))
    if options["as_json"]:
        summary = {"archive": str(path), "bytes": path.stat().st_size, "config": config}
        click.echo(json.dumps(summary))
        return
    batch = f"batch {config['batchSize']}, delay {config['maxBatchDelay']} ms"
    click.echo(
        f"{path} ({path.stat().st_size / 1e6:.1f} MB; {batch}, {config['minWorkers']} workers)"
    )


def _build(options: dict[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    # torch is imported here: `offpath archive --help` answers without it.
    from offpath.archive.build import ArchiveSpec, build_archive
    from offpath.archive.custom_handler import load_own_handler
    from offpath.archive.engines.artefacts import plan_engine
    from offpath.archive.head import settle_head
    from offpath.archive.labels import read_labels
    from offpath.archive.model_config import (
        load_preset,
        make_model_config,
        merge_preprocessing,
    )
    from offpath.archive.sources.model_source import load_model_source
    from offpath.archive.sources.stock_archive import format_changes

    warnings.filterwarnings("ignore", message=".*torch.jit.*")
    old = _unpack_old(options, folder)
    labels = read_labels(options["labels"]) if options["labels"] else None
    preset = load_preset(options["preset"])
    own = load_own_handler(options["own_handler"]) if options["own_handler"] else None
    source = load_model_source(
        options["model"], options["weights"], _say, options["weights_key"]
    )
    handler = merge_preprocessing(source.handler, _handler_settings(options))
    server = {**(old.server if old else {}), **_server_settings(options)}
    config = make_model_config(preset, server, handler)
    settle_head(config, source.module, options["calibrate"], _say)
    engine = plan_engine(config, source.module, options["calibrate"])
    spec = ArchiveSpec(
        name=options["name"] or "classifier",
        version=options["model_version"] or "1.0",
        source=source,
        labels=labels if labels is not None else source.labels,
        labels_source=str(options["labels"] or "the embedded label list"),
        config=config,
        engine=engine,
        handler=own,
        extra_files=options["extra_files"],
    )
    archive = build_archive(spec, options["output"], options["force"], _say)
    _say_where_it_runs(config)
    for change in format_changes(old, config) if old else ():
        _say(change)
    return archive, config


def _unpack_old(options: dict[str, Any], folder: Path) -> OldArchive | None:
    """Puts what `--from` holds in the place of the options that were not given."""
    from offpath.archive.sources.stock_archive import unpack

    if options["old"] is None:
        return None
    context = click.get_current_context()
    for name in ("model", "weights", "weights_key"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--from brings its own model; leave --{option} out")
    old = unpack(options["old"], folder, options["own_handler"] is not None)
    options.update(
        model=str(old.model),
        weights=None if old.weights is None else str(old.weights),
        labels=options["labels"] or old.labels,
        name=options["name"] or old.name,
        model_version=options["model_version"] or old.version,
        extra_files=(*old.extra_files, *options["extra_files"]),
    )
    return old


def _say_where_it_runs(config: dict[str, Any]) -> None:
    """An archive for a GPU may be built anywhere, but must not surprise where it is served."""
    import torch

    asks, has = config.get("deviceType") == "gpu", torch.cuda.is_available()
    if asks and not has:
        _say(
            "this archive asks for a GPU and torch sees none on this machine: here `offpath serve` "
            "refuses it without --allow-cpu"
        )
    elif has and not asks:
        _say("this machine has a GPU and this archive asks for none: --preset t4")


def _say(line: str) -> None:
    """On stderr: stdout is the result's."""
    click.echo(line, err=True)


def _server_settings(options: dict[str, Any]) -> dict[str, Any]:
    by_name = {
        "batchSize": options["batch_size"],
        "maxBatchDelay": options["max_batch_delay_ms"],
        "minWorkers": options["workers"],
        "maxWorkers": options["workers"],
        "responseTimeout": options["response_timeout_s"],
        "startupTimeout": options["startup_timeout_s"],
    }
    return {key: value for key, value in by_name.items() if value is not None}


def _handler_settings(options: dict[str, Any]) -> dict[str, Any]:
    """`--set`, and the options that have a name of their own."""
    settings = read_settings(options["settings"])
    for key in ("engine", "precision"):
        if options[key]:
            settings[key] = options[key]
    for key in ("mean", "std"):
        if options[key]:
            settings[key] = _read_numbers(f"--{key}", options[key])
    if options["prediction_log"]:
        section = settings.get("prediction_log", {})
        if not isinstance(section, dict):
            raise WrongOption(f"--set prediction_log={section!r}: not a mapping")
        settings["prediction_log"] = {**section, "uri": options["prediction_log"]}
    return settings


def _read_numbers(option: str, text: str) -> list[float]:
    try:
        return [float(number) for number in text.strip("[] ").split(",")]
    except ValueError as error:
        raise WrongOption(
            f"{option} {text!r}; expected one number, or one a channel with commas, as in "
            f"{option} 0.485,0.456,0.406"
        ) from error
