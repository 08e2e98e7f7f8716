"""Loads a folder that `save_pretrained` of transformers wrote: model, labels and preprocessing.

transformers itself loads the weights, because the names in its files are not those of its modules.
The archive gets a definition with the configuration, and the weights as a state dict, so the worker
needs transformers and no folder. Nothing is fetched, unpickled or run that the folder brings.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from offpath.archive import Say
from offpath.archive.labels import tell_apart
from offpath.archive.model_probe import format_error
from offpath.archive.photograph_sets import decode_photograph
from offpath.archive.photographs import BUNDLED
from offpath.archive.sources.definition import Definition, write_definition
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.image.geometry import INTERPOLATIONS, format_size
from offpath.handler.model.normalise import Normaliser

# Files that must be there -> what to do if none is.
NEEDED_FILES = {
    "config.json": "expected a folder that save_pretrained wrote",
    "*.safetensors": "pickled weights are not read; save the model again with "
    "model.save_pretrained(FOLDER)",
    "*processor_config.json": "add it with processor.save_pretrained(FOLDER), so that images are "
    "prepared as in training",
}
# Keys of these files that name code or change the weights.
REFUSED_KEYS = ("auto_map", "quantization_config")
# Keys whose value transformers passes on to timm.create_model. Older versions of timm unpickle the
# file at `checkpoint_path`; other arguments name files, folders and repositories too.
TIMM_ARGUMENTS = ("model_args", "backbone_kwargs")
NAMES_A_FILE = re.compile("path|file|dir|url|hub|pretrained|custom_load")
# Steps of an image processor that have settings of ours, or that concern no pixels.
KNOWN_STEPS = frozenset(
    """do_resize do_center_crop do_rescale do_normalize do_convert_rgb do_flip_channel_order
    do_reduce_labels""".split()
)
# By the numbers of PIL.Image.Resampling.
FILTERS = {int(getattr(Image.Resampling, one.upper())): one for one in INTERPOLATIONS}
# Largest mean difference of pixels, of 255. One pixel of offset makes 3 to 6, another crop 20.
MAX_DIFFERENT = 8.0
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_pretrained(
    folder: Path, say: Say
) -> tuple[Definition, dict[str, torch.Tensor], list[str], dict[str, Any]]:
    """Loads the folder.

    Args:
        say: told which preprocessing was found, and how far our pixels are from the processor's.

    Returns:
        The definition, the weights, the labels, and preprocessing and head as `handler:` settings.

    Raises:
        WrongOption: a file is missing, names code of its own, has no weights for an image
            classifier, or its preprocessing cannot be expressed by our settings.
    """
    _check_files(folder)
    transformers = _import_transformers()
    try:
        model, report = transformers.AutoModelForImageClassification.from_pretrained(
            str(folder),
            **LOCAL,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
        processor = transformers.AutoImageProcessor.from_pretrained(str(folder), **LOCAL)
    except Exception as error:  # transformers raises errors of many kinds
        raise WrongOption(
            f"--model {folder.name}: transformers cannot load it: {format_error(error)}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise WrongOption(
            f"--model {folder.name}: its weights lack {', '.join(missing[:3])}; expected the folder"
            " of a trained image classifier"
        )
    labels = tell_apart([*model.config.id2label.values()])
    handler = _read_preprocessing(folder.name, processor, model.config)
    # As ImageClassificationPipeline decides it.
    is_several = model.config.problem_type == "multi_label_classification"
    if is_several or model.config.num_labels == 1:
        handler["activation"] = "sigmoid"
    difference = _measure(processor, handler)
    kind = type(processor).__name__
    settings = ", ".join(f"{key} {value}" for key, value in handler.items())
    if difference > MAX_DIFFERENT:
        raise WrongOption(
            f"--model {folder.name}: no setting of offpath does what its {kind} does with images; "
            f"with {settings} pixels differ by {difference:.0f} of 255"
        )
    say(
        f"{folder.name}: preprocessing of its {kind} ({settings}), whose pixels differ from ours "
        f"by {difference:.2f} of 255 on average; --set changes it"
    )
    return _define(model), model.state_dict(), labels, handler


def _check_files(folder: Path) -> None:
    """Refuses what the folder lacks, and what would make transformers run or fetch code."""
    where = f"--model {str(folder)!r}"
    for pattern, cure in NEEDED_FILES.items():
        if not any(folder.glob(pattern)):
            raise WrongOption(f"{where}: no {pattern} there; {cure}")

    def check(part: dict[str, Any]) -> dict[str, Any]:
        for key, value in part.items():
            is_hub = key.endswith("_implementation") and "/" in str(value)
            # timm's names have no scheme, such as local-dir: or hf-hub:.
            is_hub |= key in ("architecture", "backbone") and ":" in str(value)
            is_file = key in TIMM_ARGUMENTS and _has_file(value)
            if is_hub or is_file or key in REFUSED_KEYS and value:
                raise WrongOption(
                    f"{where}: {name} has {key!r}, which asks for code or weights of another kind; "
                    "accepted: models that transformers itself defines, in fp32, fp16 or bf16"
                )
        return part

    for path in sorted(folder.glob("*config.json")):
        name = path.name
        try:
            json.loads(path.read_text("utf-8"), object_hook=check)
        except ValueError as error:
            raise WrongOption(f"{where}: {name} is not JSON: {error}") from error


def _has_file(arguments: object) -> bool:
    """Tells whether an argument names a file. `drop_path_rate` is a number."""
    if isinstance(arguments, list):
        return any(map(_has_file, arguments))
    return isinstance(arguments, dict) and any(
        _has_file(value) or NAMES_A_FILE.search(key) and isinstance(value, (str, dict))
        for key, value in arguments.items()
    )


def _import_transformers() -> Any:
    # Read when huggingface_hub is imported. A model must load in the same way without a network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _define(model: Any) -> Definition:
    """Writes a definition that makes the model from its configuration, without weights."""
    config = json.loads(model.config.to_json_string())
    for key in ("dtype", "id2label", "label2id"):
        config.pop(key, None)
    config["num_labels"] = model.config.num_labels
    return write_definition(
        "transformers",
        "transformers.AutoModelForImageClassification.from_config(\n"
        f"            transformers.CONFIG_MAPPING[{config['model_type']!r}]"
        f".from_dict({config!r}),\n"
        "            trust_remote_code=False,\n        )",
    )


def _read_preprocessing(name: str, processor: Any, config: Any) -> dict[str, Any]:
    """Expresses an image processor by our settings.

    Mean and std are read off what it makes of a black and a white image, which includes every
    rescaling. The size that it resizes to depends on its class too: of the possible ones, the one
    whose pixels are nearest to the processor's is taken.
    """
    settings, kind = processor.to_dict(), type(processor).__name__

    def refuse(what: str, accepted: str) -> WrongOption:
        return WrongOption(f"--model {name}: {what}, in its {kind}; accepted: {accepted}")

    for key, value in settings.items():
        if key.startswith("do_") and value and key not in KNOWN_STEPS:
            raise refuse(f"{key} is {value!r}", ", ".join(sorted(KNOWN_STEPS)))
    if settings.get("resample") not in FILTERS:
        filters = ", ".join(f"{key} ({value})" for key, value in FILTERS.items())
        raise refuse(f"resample is {settings.get('resample')!r}", filters)
    channels = getattr(config, "num_channels", 3)
    black, white = (
        _prepare(processor, Image.new("RGB", (320, 240), (grey,) * 3), channels)
        for grey in (0, 255)
    )
    if black.ndim != 3 or len(black) != channels:
        raise refuse(f"it makes {list(black.shape)}", f"[{channels}, height, width]")
    height, width = black.shape[1:]
    low, high = (it[:, height // 2, width // 2].double() for it in (black, white))
    handler: dict[str, Any] = {
        "image_size": format_size(height, width),
        "mean": [float(f"{value:.6g}") for value in (0 - low) / (high - low)],
        "std": [float(f"{value:.6g}") for value in 1 / (high - low)],
        "interpolation": FILTERS[settings["resample"]],
    }
    if channels != 3:
        handler["channels"] = channels
    if settings.get("do_flip_channel_order"):
        handler["channel_order"] = "bgr"
    found = [{**handler, **one} for one in _list_resizes(settings, max(height, width))]
    if not found:
        size = f"size is {settings.get('size')!r}"
        raise refuse(size, "shortest_edge with a centre crop, or height and width")
    try:
        return min(found, key=lambda one: _measure(processor, one))
    except ConfigError as error:
        raise WrongOption(f"--model {name}: {error} (from its {kind})") from error


def _list_resizes(settings: dict[str, Any], side: int) -> Iterator[dict[str, Any]]:
    """Lists what the processor's size may mean, for an input whose longer side is given."""
    size = settings.get("size") or {}
    edge = size.get("shortest_edge")
    if size.get("height") and size.get("width"):
        both = format_size(size["height"], size["width"])
        yield {"resize": "stretch", "resize_size": both}
    elif edge and not size.get("longest_edge"):
        sizes = {edge, int(256 / 224 * edge)}  # LeViT's
        if settings.get("crop_pct"):  # of ConvNeXT and PoolFormer
            sizes.add(int(edge / settings["crop_pct"]))
        for resize in ("shorter", "stretch"):
            for resize_size in sorted(it for it in sizes if it >= side):
                yield {"resize": resize, "resize_size": resize_size}


def _prepare(processor: Any, image: Image.Image, channels: int) -> torch.Tensor:
    """Returns what the processor makes of an image: float32 [channels, height, width]."""
    shown = image.convert("L" if channels == 1 else "RGB")
    pixels: torch.Tensor = processor(images=shown, return_tensors="pt")["pixel_values"]
    return pixels[0]


def _measure(processor: Any, handler: dict[str, Any]) -> float:
    """Compares our pixels with the processor's on the photographs that ship with offpath.

    Returns:
        the mean absolute difference for the worst of them, 0 to 255; infinite for another shape.
    """
    config = HandlerConfig.from_mapping({**handler, "decode": "exact"}, environ={})
    normalise = Normaliser(config, torch.device("cpu"))
    grey_levels = 255 * torch.tensor(config.std).view(-1, 1, 1)
    differences = []
    for path in sorted(BUNDLED.glob("*.jpg")):
        with Image.open(path) as image:
            theirs = _prepare(processor, image, config.channels)
        pixels = decode_photograph(path.read_bytes(), config)
        ours = normalise(torch.tensor(pixels)[None])[0]
        if ours.shape != theirs.shape:
            return math.inf
        differences.append(float(((theirs - ours) * grey_levels).abs().mean()))
    return max(differences)
