"""Runs the model before the archive is built: the input it takes, and what its outputs are.

Many models end with their own softmax or sigmoid. A second one on top flattens every answer, and
nothing fails. So photographs decide `activation: auto`, and a doubtful activation is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from offpath.archive import Say
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.image.geometry import CHANNELS, InputGeometry
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.outputs import Output, activate, take_output

# A batch of 1 would hide a model that accepts nothing else.
BATCH = 2
# Sizes that models are usually trained at; tried when the model refuses the configured one.
USUAL_SIZES = (
    *(224, 256, 288, 299, 300, 320, 336, 380, 384, 448, 456, 480, 512, 528, 600),
    *(32, 64, 96, 128, 160, 192, 240, 260, 640, 768, 1024),
)
# A softmax or a sigmoid shows on any image, so a few are enough.
IMAGES = 6
# The bound for one image run twice, and where a layer computes with the batch; rounding is less.
SURE_BOUND = 1e-3
# The output that is taken where a model returns several. Models of transformers have it.
USUAL_OUTPUT = "logits"
# How far the sum of a softmax may be from 1; a model may compute in half precision inside.
SUM_TOLERANCE = 1e-2


def count_classes(module: torch.nn.Module, geometry: InputGeometry) -> int:
    """Runs black images through the model and returns the width of its output.

    Raises:
        WrongOption: the model refuses them, or returns anything but [batch, classes]. The message
            is one line and says what to pass where that can be found out.
    """
    module.eval()
    try:
        output = _run(module, geometry)
    except Exception as error:
        reason = _find_reason(module, geometry) or format_error(error)
        raise WrongOption(
            f"the model does not accept a float32 {list(_input_shape(geometry, BATCH))}: {reason}"
        ) from error
    is_tensor = isinstance(output, torch.Tensor)
    if not is_tensor or output.ndim != 2 or len(output) != BATCH:
        shape = list(output.shape) if is_tensor else type(output).__name__
        raise WrongOption(
            f"a classifier must return [batch, classes]; for {BATCH} images this model returned "
            f"{shape}"
        )
    if not output.is_floating_point():
        raise WrongOption(
            f"a classifier must return scores; this model returned {str(output.dtype)[6:]} "
            "(class indices?)"
        )
    return int(output.shape[1])


def check_label_count(labels: list[str], classes: int, source: str) -> None:
    if len(labels) != classes:
        raise WrongOption(
            f"{source} has {len(labels)} labels, but the model has {classes} classes; expected one "
            "label per class"
        )
    if len({*labels}) < len(labels):
        raise WrongOption(f"{source} has a label more than once, and replies are keyed by label")


def find_output(
    module: torch.nn.Module, geometry: InputGeometry, wanted: Output | None, say: Say
) -> Output | None:
    """Finds the scores in what the model returns; None if it returns only them.

    Args:
        wanted: the setting `output`.
        say: told what was taken of what, in one line.

    Raises:
        WrongOption: the outputs have no `wanted`, or without it no `logits` and no first tensor.
    """
    try:
        module.eval()  # on its own line: a class may override it and return nothing
        outputs = _run(module, geometry)
    except Exception:
        return wanted  # count_classes explains why the model refuses its input
    if isinstance(outputs, torch.Tensor):
        if wanted is None:
            return None
        raise WrongOption(
            f"handler.output is {wanted!r}, and the model returns one tensor; leave it out"
        )
    found = _list_outputs(outputs)
    listed = ", ".join(
        f"{name} {list(value.shape) if torch.is_tensor(value) else type(value).__name__}"
        for name, value in found.items()
    )
    what = f"the model returns {type(outputs).__name__}({listed})"
    usual = 0 if 0 in found else USUAL_OUTPUT
    taken = usual if wanted is None else wanted
    try:
        take_output(outputs, taken)
    except (LookupError, AttributeError, TypeError) as error:
        raise WrongOption(
            f"{what}, which has no {taken!r}; name the scores, [batch, classes], with "
            "--set output=..."
        ) from error
    if wanted is None:
        say(f"{what}: taking {taken} (--set output=... takes another)")
    return taken


def _list_outputs(outputs: Any) -> dict[Any, Any]:
    """Returns what a model returned by the names or positions that `output` accepts."""
    if isinstance(outputs, (tuple, list)):
        return dict(enumerate(outputs))
    is_mapping = isinstance(outputs, Mapping)
    return dict(outputs if is_mapping else getattr(outputs, "__dict__", {}))


def format_error(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # TorchScript puts its own traceback first and the reason last.
    return lines[-1] if "TorchScript" in lines[0] else lines[0]


def find_channels(module: torch.nn.Module) -> int | None:
    """Returns the first convolution's channels (per group); None without a convolution."""
    return next((int(p.shape[1]) for p in module.parameters() if p.dim() == 4), None)


@dataclass(frozen=True)
class OutputSummary:
    """A summary of a model's outputs for some photographs.

    Attributes:
        classes: outputs per image.
        are_scores: all lie between 0 and 1, as after a softmax or a sigmoid.
        description: the end of a sentence that begins with "the model's outputs are".
    """

    classes: int
    are_scores: bool
    description: str


def choose_activation(
    model: torch.nn.Module, config: HandlerConfig, photographs: Pixels, say: Say
) -> str:
    """Returns the activation to serve with: the configured one, or what `auto` stands for.

    Args:
        model: maps normalised float32 [batch, channels, height, width] to outputs.
        photographs: uint8 [n, height, width, channels]; a few of them are used.
        say: told what `auto` became, or what looks wrong; one line each.

    Raises:
        WrongOption: `auto` became softmax, which does not go with the configured `threshold`.
    """
    outputs = summarise_outputs(model, config, photographs)
    if config.activation != "auto":
        doubt = _find_doubt(outputs, config.activation)
        if doubt is not None:
            say(f"warning: {doubt}")
        return config.activation
    if outputs.are_scores:
        chosen = "none"
    else:
        chosen = "softmax" if outputs.classes > 1 else "sigmoid"
    if chosen == "softmax" and config.threshold is not None:
        raise WrongOption(
            f"activation auto is softmax for this model (its outputs are {outputs.description}), "
            "and softmax takes no threshold; for several labels per image pass "
            "--set activation=sigmoid"
        )
    say(f"activation auto: {chosen}; the model's outputs are {outputs.description}")
    return chosen


def summarise_outputs(
    model: torch.nn.Module, config: HandlerConfig, photographs: Pixels
) -> OutputSummary:
    """Runs the model in eager fp32 on a few of the photographs, one image at a time.

    Raises:
        WrongOption: the best output for a photograph is NaN or infinite, or the model fails.
    """
    model.eval()
    engine = EagerEngine(model, config, torch.device("cpu"))
    few = torch.from_numpy(photographs[:: -(-len(photographs) // IMAGES)])
    try:
        with torch.inference_mode():
            outputs = torch.cat([engine(image).float() for image in few.split(1)])
    except Exception as error:
        raise WrongOption(
            f"the model takes {BATCH} images and fails on one alone, as clients may send it: "
            f"{format_error(error)}; batch norm must have running statistics"
        ) from error
    if not outputs.amax(1).isfinite().all():
        raise WrongOption(
            "the model's outputs for photographs are not finite (NaN or infinity); check the"
            " weights, and --set mean and std"
        )
    classes, low, high = outputs.shape[1], float(outputs.min()), float(outputs.max())
    are_scores = 0.0 <= low and high <= 1.0
    if not are_scores:
        description = f"no probabilities ({low:.3g} to {high:.3g})"
    elif classes > 1 and ((outputs.sum(1) - 1).abs() <= SUM_TOLERANCE).all():
        description = "probabilities that sum to 1, as after a softmax"
    else:
        description = "between 0 and 1 without summing to 1, as after a sigmoid"
    return OutputSummary(classes, are_scores, description)


def check_repeatable(model: torch.nn.Module, config: HandlerConfig, photographs: Pixels) -> None:
    """Runs a photograph alone, alone again, and at two places of a batch.

    Raises:
        WrongOption: its scores depend on chance, or on the images beside it by more than
            `parity_bound` of its best score. `parity_bound` 1 accepts both.
    """
    if config.parity_bound == 1:
        return
    model.eval()
    engine = EagerEngine(model, config, torch.device("cpu"))
    image = torch.from_numpy(photographs[:1])
    batch = torch.cat([image, 255 - image])

    def run(images: torch.Tensor, place: int) -> torch.Tensor:
        with torch.inference_mode():
            return activate(engine(images), config.activation)[place].clone()

    alone = run(image, 0)
    # In evaluation these compute with the batch or by chance.
    layers = [
        f"layer {name!r} ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if isinstance(layer, (_BatchNorm, _DropoutNd))
        if layer.training or getattr(layer, "running_mean", layer) is None
    ]
    for when, images, place in (
        ("alone again", image, 0),
        ("before another", batch, 0),
        ("behind another", batch.flip(0), 1),
    ):
        scores = run(images, place)
        moved = (scores - alone).abs() / alone.abs().max().maximum(scores.abs().max())
        bound = SURE_BOUND if images is image or layers else config.parity_bound
        moved = moved.nan_to_num(0)  # all scores are 0
        if moved.max() > bound:
            worst = int(moved.argmax())
            raise WrongOption(
                f"a photograph's score is {alone[worst]:.2g} alone and {scores[worst]:.2g} {when}, "
                f"by {', '.join(layers[:3]) or 'the code of a forward'}: batch norm needs running "
                "statistics, dropout training=self.training, and TorchScript model.eval() before "
                "it is traced; --set parity_bound=1 accepts such answers"
            )


def _find_doubt(outputs: OutputSummary, activation: str) -> str | None:
    """Explains why the activation probably does not fit the model; None if it fits."""
    if outputs.are_scores and activation != "none":
        return (
            f"the model's outputs are {outputs.description}, and activation is {activation}: "
            "applying it again flattens every answer; pass --set activation=none"
        )
    if outputs.classes == 1 and activation == "softmax":
        return "softmax of one class is always 1; pass --set activation=sigmoid"
    if not outputs.are_scores and activation == "none":
        return (
            f"the model's outputs are {outputs.description}, and activation is none: replies "
            "would hold these raw outputs; pass --set activation=softmax or sigmoid"
        )
    return None


def _find_reason(module: torch.nn.Module, geometry: InputGeometry) -> str | None:
    """Tries other inputs to find out why the model refuses this one; None if none explains it."""
    wanted = find_channels(module)
    if wanted is not None and wanted != geometry.channels:
        if wanted in CHANNELS:
            return (
                f"its first convolution takes {wanted} channels and handler.channels is "
                f"{geometry.channels}; pass --set channels={wanted} with --set mean and std"
            )
        return f"its first convolution takes {wanted} channels; accepted: 1 or 3"
    if _accepts(module, geometry, batch=1):
        return (
            "it takes one image at a time; export it with a dynamic batch (torch.export: "
            "dynamic_shapes), or trace it with two images"
        )
    sizes = (n for n in USUAL_SIZES if _accepts(module, replace(geometry, size=n)))
    other = next(sizes, None)
    if other is None:
        return None
    return f"it takes {other} x {other} pixels; pass --set image_size={other}"


def _accepts(module: torch.nn.Module, geometry: InputGeometry, batch: int = BATCH) -> bool:
    try:
        _run(module, geometry, batch)
    except Exception:
        return False
    return True


def _run(module: torch.nn.Module, geometry: InputGeometry, batch: int = BATCH) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = module(torch.zeros(_input_shape(geometry, batch)))
    return output


def _input_shape(geometry: InputGeometry, batch: int) -> tuple[int, int, int, int]:
    height, width, channels = geometry.shape
    return batch, channels, height, width
